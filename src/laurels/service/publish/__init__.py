"""Events for other systems: webhooks and Kafka."""
