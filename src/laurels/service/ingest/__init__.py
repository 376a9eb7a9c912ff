"""Scores out of Kafka: schemas, the transformer, the consumer and dead letters."""
