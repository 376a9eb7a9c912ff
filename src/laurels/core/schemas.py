"""Event schemas: where a game's own events contain the parts of a score.

A pod can have several versions of its schema.
"""

from enum import StrEnum

from msgspec import Struct


class TimestampFormat(StrEnum):
    ISO_8601 = "ISO_8601"
    EPOCH_MILLIS = "EPOCH_MILLIS"
    EPOCH_SECONDS = "EPOCH_SECONDS"


class ScoreType(StrEnum):
    INTEGER = "integer"
    DOUBLE = "double"


class SchemaState(StrEnum):
    """The state of a schema. Active and deprecated schemas are in use.

    An event that names no version is read with the newest active schema; if none is active, with the newest deprecated
    one.
    """

    DRAFT = "draft"
    ACTIVE = "active"
    DEPRECATED = "deprecated"
    RETIRED = "retired"


class FieldSource(Struct, frozen=True, omit_defaults=True):
    """Where a value is found in an event: in a field, given by its dot path, or in a header."""

    field: str | None = None
    header: str | None = None


class FieldMappings(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The dot path of each part of a score in an event."""

    user_id: str
    score: str
    uuid: str
    # None: use the timestamp of the Kafka record.
    timestamp: str | None = None
    region: str | None = None
    subscore: str | None = None


class SchemaTerms(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The content of a schema, as it is stored."""

    field_mappings: FieldMappings
    timestamp_format: TimestampFormat = TimestampFormat.ISO_8601
    score_type: ScoreType = ScoreType.DOUBLE
    # None: the event id is `KafkaRecord.record_id`.
    event_id_from: FieldSource | None = None
    # None: the schema reads events that name no version.
    version_from: FieldSource | None = None


class Schema(Struct, frozen=True):
    pod_id: str
    version: str
    state: SchemaState
    terms: SchemaTerms
    created_at: int
    updated_at: int

    @property
    def is_used(self) -> bool:
        return self.state in {SchemaState.ACTIVE, SchemaState.DEPRECATED}
