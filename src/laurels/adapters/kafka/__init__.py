"""Kafka, through librdkafka."""

from laurels.adapters.kafka.broker import KafkaBroker
from laurels.adapters.kafka.client_config import read_client_config

__all__ = ["KafkaBroker", "read_client_config"]
