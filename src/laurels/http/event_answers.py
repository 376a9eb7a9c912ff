"""Response bodies about events from Kafka: schemas, trials and dead letters."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from laurels.core.schemas import SchemaState, ScoreType, TimestampFormat
from laurels.http.answers import Problem
from laurels.http.fields import Answer, Instant


class WhereAnswer(Answer):
    field: str | None
    header: str | None


class FieldMappingsAnswer(Answer):
    user_id: str
    score: str
    uuid: str = field(name="UUID")
    timestamp: str | None
    region: str | None
    subscore: str | None


class SchemaAnswer(Answer):
    pod_id: str
    schema_version: str
    state: SchemaState
    field_mappings: FieldMappingsAnswer
    timestamp_format: TimestampFormat
    score_type: ScoreType
    event_id_from: WhereAnswer | None
    version_from: WhereAnswer | None
    created_at: Instant
    updated_at: Instant


class SchemasAnswer(Answer):
    schemas: list[SchemaAnswer]


class CommonEvent(Answer):
    """An event in the common form, which is the same for all schemas."""

    event_id: str
    event_type: str
    pod_id: str
    uuid: str = field(name="UUID")
    user_id: str
    score: float
    timestamp: str
    metadata: dict[str, Any]
    region: str | UnsetType = UNSET
    subscore: int | UnsetType = UNSET


class TrialAnswer(Answer):
    schema_version: str
    event: CommonEvent
    problem: Annotated[Problem | None, Meta(description="Why the event would not be counted. null: it would be.")]


class DeadLetterEntry(Answer):
    id: str
    code: str
    reason: str
    field: Annotated[str | None, Meta(description="The field of the event that caused the error.")]
    schema_version: str | None
    topic: Annotated[str, Meta(description="The topic of the record; see also `partition` and `offset`.")]
    partition: int
    offset: int
    timestamp: Instant
    failed_at: Instant
    replayed_at: Instant | None
    discarded_at: Instant | None
    discard_reason: str | None


class DeadLettersAnswer(Answer):
    dead_letters: list[DeadLetterEntry]
    next_cursor: str | None


class DeadLetterAnswer(DeadLetterEntry, kw_only=True):
    key: str | None
    headers: dict[str, str | None]
    value: str | None
    value_base64: str | None


class ReplayResult(Answer):
    id: str
    status: Annotated[str, Meta(description="`accepted`, `duplicate`, or `refused` with a `problem`.")]
    event_id: str | None = None
    problem: Problem | None = None


class ReplayedAnswer(Answer):
    results: list[ReplayResult]


class DiscardedAnswer(Answer):
    discarded: Annotated[int, Meta(description="How many were discarded now; the others were before, or were counted.")]
