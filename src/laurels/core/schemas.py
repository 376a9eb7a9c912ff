"""Event schemas: where a game's own events have what a score consists of. A pod has any number of versions of them."""

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
    """Active and deprecated ones are in use; events that name none use the newest active one first."""

    DRAFT = "draft"
    ACTIVE = "active"
    DEPRECATED = "deprecated"
    RETIRED = "retired"


class Where(Struct, frozen=True, omit_defaults=True):
    """Where something of an event is found: in a field, by its dot path, or in a header."""

    field: str | None = None
    header: str | None = None


class FieldMappings(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The dot path of each part of a score."""

    user_id: str
    score: str
    uuid: str
    # None: when Kafka got the record.
    timestamp: str | None = None
    region: str | None = None


class SchemaTerms(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a schema says, as it is stored."""

    field_mappings: FieldMappings
    timestamp_format: TimestampFormat = TimestampFormat.ISO_8601
    score_type: ScoreType = ScoreType.DOUBLE
    # None: the record's place in Kafka is its id.
    event_id_from: Where | None = None
    # None: the schema of events that name none.
    version_from: Where | None = None


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
