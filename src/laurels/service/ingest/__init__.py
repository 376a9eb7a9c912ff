"""Scores from Kafka: schemas, the transformer, the consumer and dead letters."""
