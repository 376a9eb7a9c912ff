"""Event schemas: how a pod's events from Kafka map to scores. The server keys of a pod manage its schemas."""

from typing import Any

import msgspec

from laurels.core.instants import to_datetime
from laurels.core.schemas import FieldMappings, FieldSource, Schema, SchemaTerms
from laurels.errors import Invalid, LaurelsError, NotFound
from laurels.http.call import Call
from laurels.http.decode import decode_value
from laurels.http.event_answers import (
    CommonEvent,
    FieldMappingsAnswer,
    SchemaAnswer,
    SchemasAnswer,
    TrialAnswer,
    WhereAnswer,
)
from laurels.http.fields import SchemaVersion
from laurels.http.problems import problem_of
from laurels.http.queries import NoQuery
from laurels.http.requests import SchemaBody, SchemaStateBody, TryOutBody, WhereBody
from laurels.ports import KafkaRecord
from laurels.service.boards.boards import unknown_board
from laurels.service.ingest.transformer import show_common


async def get_schemas(call: Call[NoQuery, None]) -> SchemasAnswer:
    """List the schemas of a pod, newest first."""
    pod_id = await _pod_of(call)
    return SchemasAnswer(schemas=[_answer(schema) for schema in call.laurels.schemas.of_pod(pod_id)])


async def get_schema(call: Call[NoQuery, None]) -> SchemaAnswer:
    """Return one version of a pod's schema."""
    return _answer(call.laurels.schemas.find(await _pod_of(call), _version(call)))


async def put_schema(call: Call[NoQuery, SchemaBody]) -> SchemaAnswer:
    """Create or replace a version of a pod's schema.

    Several versions can be in use at the same time. An event is read with the version that it names at `versionFrom`,
    or, if it names none, with the newest active schema that has no `versionFrom`. Consumers apply a change within a
    second.
    """
    body, version, pod_id = call.body, _version(call), await _pod_of(call)
    if body.schema_version not in {None, version}:
        raise Invalid(
            "wrong_format",
            f"The path has version {version!r}, but the body has {body.schema_version!r}. Send the same.",
            field="schemaVersion",
            rule="the same as in the path",
        )
    mappings = body.field_mappings
    terms = SchemaTerms(
        FieldMappings(
            user_id=mappings.user_id,
            score=mappings.score,
            uuid=mappings.uuid,
            timestamp=mappings.timestamp,
            region=mappings.region,
            subscore=mappings.subscore,
        ),
        body.timestamp_format,
        body.score_type,
        _where(body.event_id_from),
        _where(body.version_from),
    )
    before = _find(call, pod_id, version)
    return _changed(call, before, await call.laurels.schemas.put(pod_id, version, terms, body.state))


async def patch_schema(call: Call[NoQuery, SchemaStateBody]) -> SchemaAnswer:
    """Change the state of a schema.

    `draft`: not used yet. `active`: used. `deprecated`: still used, but active schemas take precedence. `retired`: no
    longer used.
    """
    pod_id, version = await _pod_of(call), _version(call)
    before = _find(call, pod_id, version)
    return _changed(call, before, await call.laurels.schemas.set_state(pod_id, version, call.body.state))


async def delete_schema(call: Call[NoQuery, None]) -> SchemaAnswer:
    """Delete a schema that is a draft or retired."""
    pod_id = await _pod_of(call)
    deleted = _answer(await call.laurels.schemas.delete(pod_id, _version(call)))
    call.note_change(deleted, None)
    return deleted


async def post_trial(call: Call[NoQuery, TryOutBody]) -> TrialAnswer:
    """Try how an event would be read.

    Returns the event in the common form, or the error that its dead letter would have. If the event can be read but its
    board would not count it, `problem` has the reason. Nothing is stored.
    """
    pod_id, body = await _pod_of(call), call.body
    headers = tuple((name, value.encode()) for name, value in body.headers.items())
    now = call.laurels.clock.now_us()
    record = KafkaRecord(call.laurels.topics.updates(pod_id), 0, 0, None, msgspec.json.encode(body.event), headers, now)
    transformed, version = call.laurels.schemas.try_out(pod_id, record, body.schema_version)
    problem = None
    try:
        board = call.laurels.boards.of_pod(pod_id, transformed.uuid)
        call.laurels.submissions.check(board, transformed.submission)
    except LaurelsError as error:
        hidden = error.code == "wrong_pod" and not call.caller.is_admin
        problem = problem_of(unknown_board(transformed.uuid) if hidden else error)
    event = msgspec.convert(show_common(pod_id, transformed), CommonEvent)
    return TrialAnswer(schema_version=version, event=event, problem=problem)


def _find(call: Call[Any, Any], pod_id: str, version: str) -> Schema | None:
    try:
        return call.laurels.schemas.find(pod_id, version)
    except NotFound:
        return None


def _changed(call: Call[Any, Any], before: Schema | None, after: Schema) -> SchemaAnswer:
    answer = _answer(after)
    call.note_change(None if before is None else _answer(before), answer)
    return answer


async def _pod_of(call: Call[Any, Any]) -> str:
    return await call.laurels.access.pod_of(call.caller, call.path("podId"))


def _version(call: Call[Any, Any]) -> str:
    return str(decode_value(call.path("schemaVersion"), SchemaVersion, "schemaVersion"))


def _where(body: WhereBody | None) -> FieldSource | None:
    return None if body is None else FieldSource(body.field, body.header)


def _show_where(where: FieldSource | None) -> WhereAnswer | None:
    return None if where is None else WhereAnswer(field=where.field, header=where.header)


def _answer(schema: Schema) -> SchemaAnswer:
    terms = schema.terms
    mappings = terms.field_mappings
    return SchemaAnswer(
        pod_id=schema.pod_id,
        schema_version=schema.version,
        state=schema.state,
        field_mappings=FieldMappingsAnswer(
            user_id=mappings.user_id,
            score=mappings.score,
            uuid=mappings.uuid,
            timestamp=mappings.timestamp,
            region=mappings.region,
            subscore=mappings.subscore,
        ),
        timestamp_format=terms.timestamp_format,
        score_type=terms.score_type,
        event_id_from=_show_where(terms.event_id_from),
        version_from=_show_where(terms.version_from),
        created_at=to_datetime(schema.created_at),
        updated_at=to_datetime(schema.updated_at),
    )
