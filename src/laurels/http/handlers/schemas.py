"""Event schemas: how the events of a pod's games are read. A pod's own server keys may set them."""

from typing import Any

import msgspec

from laurels.core.instants import to_datetime
from laurels.core.schemas import FieldMappings, Schema, SchemaTerms, Where
from laurels.errors import Invalid, LaurelsError
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
from laurels.http.requests import NoQuery, SchemaBody, SchemaStateBody, TryOutBody, WhereBody
from laurels.ports import Letter
from laurels.service.boards import unknown_board
from laurels.service.ingest.transformer import show_common


async def get_schemas(call: Call[NoQuery, None]) -> SchemasAnswer:
    """The schemas of a pod, the last made first"""
    pod_id = await _pod_of(call)
    return SchemasAnswer(schemas=[_answer(schema) for schema in call.laurels.schemas.of_pod(pod_id)])


async def get_schema(call: Call[NoQuery, None]) -> SchemaAnswer:
    """One version of a pod's schema"""
    return _answer(call.laurels.schemas.find(await _pod_of(call), _version(call)))


async def put_schema(call: Call[NoQuery, SchemaBody]) -> SchemaAnswer:
    """Make a version of a pod's schema, or replace it

    Any number of versions may be in use at once. An event is read with the version that it names, where `versionFrom`
    says; one that names none, with the newest active schema that has no `versionFrom`. Consumers know of a change
    within a second.
    """
    body, version, pod_id = call.body, _version(call), await _pod_of(call)
    if body.schema_version not in {None, version}:
        raise Invalid(
            "wrong_format",
            f"The address says version {version!r}, and the body {body.schema_version!r}.",
            field="schemaVersion",
            rule="as in the address",
        )
    mappings = body.field_mappings
    terms = SchemaTerms(
        FieldMappings(mappings.user_id, mappings.score, mappings.uuid, mappings.timestamp, mappings.region),
        body.timestamp_format,
        body.score_type,
        _where(body.event_id_from),
        _where(body.version_from),
    )
    return _answer(await call.laurels.schemas.put(pod_id, version, terms, body.state))


async def patch_schema(call: Call[NoQuery, SchemaStateBody]) -> SchemaAnswer:
    """Change the state of a schema

    `draft`: not used yet. `active`: used. `deprecated`: still used, after active ones. `retired`: not used any more.
    """
    pod_id = await _pod_of(call)
    return _answer(await call.laurels.schemas.set_state(pod_id, _version(call), call.body.state))


async def delete_schema(call: Call[NoQuery, None]) -> SchemaAnswer:
    """Delete a schema that is a draft or retired"""
    pod_id = await _pod_of(call)
    return _answer(await call.laurels.schemas.delete(pod_id, _version(call)))


async def post_trial(call: Call[NoQuery, TryOutBody]) -> TrialAnswer:
    """Try out how an event would be read

    Gives the score that it would be, or the error that its dead letter would have; if it can be read and its board
    would not count it, `problem` says why. Nothing is stored.
    """
    pod_id, body = await _pod_of(call), call.body
    headers = tuple((name, value.encode()) for name, value in body.headers.items())
    now = call.laurels.clock.now_us()
    letter = Letter(call.laurels.topics.updates(pod_id), 0, 0, None, msgspec.json.encode(body.event), headers, now)
    transformed, version = call.laurels.schemas.try_out(pod_id, letter, body.schema_version)
    problem = None
    try:
        board = call.laurels.boards.of_pod(pod_id, transformed.uuid)
        call.laurels.submissions.check(board, transformed.submission)
    except LaurelsError as error:
        hidden = error.code == "wrong_pod" and not call.caller.is_admin
        problem = problem_of(unknown_board(transformed.uuid) if hidden else error)
    event = msgspec.convert(show_common(pod_id, transformed), CommonEvent)
    return TrialAnswer(schema_version=version, event=event, problem=problem)


async def _pod_of(call: Call[Any, Any]) -> str:
    return await call.laurels.access.pod_of(call.caller, call.path("podId"))


def _version(call: Call[Any, Any]) -> str:
    return str(decode_value(call.path("schemaVersion"), SchemaVersion, "schemaVersion"))


def _where(body: WhereBody | None) -> Where | None:
    return None if body is None else Where(body.field, body.header)


def _show_where(where: Where | None) -> WhereAnswer | None:
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
        ),
        timestamp_format=terms.timestamp_format,
        score_type=terms.score_type,
        event_id_from=_show_where(terms.event_id_from),
        version_from=_show_where(terms.version_from),
        created_at=to_datetime(schema.created_at),
        updated_at=to_datetime(schema.updated_at),
    )
