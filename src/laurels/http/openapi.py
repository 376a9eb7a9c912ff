"""The OpenAPI document, made from the route table and the types of the handlers."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from laurels import __version__
from laurels.core import limits
from laurels.errors import ERROR_MAPPINGS, Malformed
from laurels.http import guards
from laurels.http.answers import Problem
from laurels.http.call import Endpoint, Streamed, Text
from laurels.http.fields import BoardUuid, Circle, DeadLetterId, PodId, SchemaVersion, TemplateName, UserId
from laurels.http.live import Live
from laurels.http.live_answers import LiveFrame
from laurels.http.operating_answers import RebuildLine, VerifyLine
from laurels.http.problems import MEDIA_TYPE
from laurels.http.requests import ScoreItem

if TYPE_CHECKING:
    from laurels.http.routes import Route

REF = "#/components/schemas/{name}"
PATH_PARTS: dict[str, Any] = {
    "UUID": BoardUuid,
    "userId": UserId,
    "podId": PodId,
    "keyId": str,
    "period": str,
    "rewardId": str,
    "circle": Circle,
    "actId": str,
    "schemaVersion": SchemaVersion,
    "letterId": DeadLetterId,
    "templateName": TemplateName,
    "reviewId": str,
}
# By operation: the operations that its response leads to, each with its parameters and the fields that they take.
_BOARD = {"UUID": "UUID"}
_POD = {"podId": "podId"}
_USER = {"UUID": "UUID", "userId": "userId"}
LINKS: dict[str, dict[str, dict[str, str]]] = {
    "post_board": {
        "get_board": _BOARD,
        "patch_board": _BOARD,
        "delete_board": _BOARD,
        "post_scores": _BOARD,
        "get_top": _BOARD,
        "get_periods": _BOARD,
        "get_distribution": _BOARD,
        "get_events": _BOARD,
    },
    "patch_board": {"get_board": _BOARD, "get_top": _BOARD},
    "put_score": {"get_rank": _USER, "get_around": _USER, "get_history": _USER, "delete_user": _USER},
    "get_rank": {"get_around": _USER},
    "post_pod": {"patch_pod": _POD, "post_key": _POD, "get_keys": _POD, "get_usage": _POD, "get_schemas": _POD},
    "put_schema": {
        "get_schema": {"podId": "podId", "schemaVersion": "schemaVersion"},
        "patch_schema": {"podId": "podId", "schemaVersion": "schemaVersion"},
    },
    "put_hidden_on_board": {"get_act": {"actId": "actId"}, "post_restore": {"actId": "actId"}},
    "put_hidden": {"get_act": {"actId": "actId"}, "post_restore": {"actId": "actId"}},
    "post_void": {"get_act": {"actId": "actId"}, "post_restore": {"actId": "actId"}},
    "put_profile": {"get_profile": {"userId": "userId"}, "delete_person": {"userId": "userId"}},
}
_TITLES = {outside.http_status: outside.title for outside in ERROR_MAPPINGS.values()}


def build_openapi(routes: Sequence["Route"]) -> bytes:
    endpoints = [route.endpoint for route in routes]
    types = _types(endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    by_type = dict(zip(map(str, types), schemas, strict=True))
    # The items of a batch are decoded one by one, so the type of the list does not name their type.
    components["ScoreBatch"]["properties"]["scores"]["items"] = {"$ref": REF.format(name="ScoreItem")}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type, components)
    return _plain_patterns(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Laurels",
                "version": __version__,
                "description": "A real-time leaderboard service. Errors are `application/problem+json` (RFC 9457) "
                "with a stable `code`. Send the key as `Authorization: Bearer KEY` or `X-API-Key: KEY`.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                },
            },
            # Public boards need no key.
            "security": [{"bearer": []}, {"key": []}, {}],
        }
    )


def _plain_patterns(document: dict[str, Any]) -> bytes:
    """Encode the document with plain `$` anchors, because not every JSON Schema reader supports lookaheads."""
    return msgspec.json.encode(document).replace(msgspec.json.encode(limits.END)[1:-1], b"$")


def _types(endpoints: Iterable[Endpoint]) -> list[Any]:
    found: list[Any] = [Problem, ScoreItem, VerifyLine, RebuildLine, *PATH_PARTS.values()]
    for each in endpoints:
        found += [each.query_type, each.body_type, each.answer_type]
    found += get_args(LiveFrame)
    unique = {str(kind): kind for kind in found if kind not in {None, Streamed, Text, Live}}
    return list(unique.values())


def _operation(route: "Route", by_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    called = route.endpoint
    operation: dict[str, Any] = {
        "operationId": called.handler.__name__,
        "tags": [route.tag],
        "summary": called.summary,
        "parameters": _path_parameters(route.path, by_type) + _query_parameters(called, by_type, components),
        "responses": _responses(route, by_type),
    }
    if called.description:
        operation["description"] = called.description
    if called.traits.idempotency_key:
        operation["parameters"].append(_idempotency_key())
    if called.body_type is not None:
        schema = by_type[str(called.body_type)]
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": not called.takes_nothing, "content": content}
    return operation


def _path_parameters(path: str, by_type: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": by_type[str(PATH_PARTS[name])]}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(called: Endpoint, by_type: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    name = by_type[str(called.query_type)]["$ref"].rpartition("/")[2]
    return [
        {"name": name, "in": "query", "required": False, "schema": _without_null(schema)}
        for name, schema in components[name].get("properties", {}).items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without null, because an optional query parameter is absent, never null."""
    choices = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if not choices:
        return schema
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _idempotency_key() -> dict[str, Any]:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Makes a retry safe: the same call with the same key takes effect once.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    }


def _responses(route: "Route", by_type: dict[str, Any]) -> dict[str, Any]:
    called = route.endpoint
    if called.answer_type is Streamed:
        content = {"application/x-ndjson": {"schema": {"type": "string"}}}
    elif called.answer_type is Live:
        content = {"text/event-stream": {"schema": _event_stream(by_type)}}
    elif called.answer_type is Text:
        content = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": by_type[str(called.answer_type)]}}
    if called.traits.websocket:
        return {"101": {"description": "Frames follow"}} | _problems(route)
    done: dict[str, Any] = {"description": "Done", "content": content}
    if links := LINKS.get(called.handler.__name__):
        done["links"] = {name: _link(name, names) for name, names in links.items()}
    responses: dict[str, Any] = {str(called.traits.status): done}
    if called.traits.may_spool:
        responses["202"] = {
            "description": "Stored on the server's disk until the ledger is reachable",
            "content": content,
        }
    if called.traits.may_continue:
        responses["202"] = {"description": "Started; the work continues", "content": content}
    responses |= _problems(route)
    if called.traits.answers_503:
        responses["503"]["content"]["application/json"] = content["application/json"]
    return responses


def _event_stream(by_type: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a stream: text, in which the data of each event is a JSON object of one of these types."""
    return {
        "type": "string",
        "description": "Server-sent events. `event` is the type of the frame, `id` its id, and `data` a JSON object.",
        "contentMediaType": "text/event-stream",
        "x-event-data": {"oneOf": [by_type[str(frame)] for frame in get_args(LiveFrame)]},
    }


def _link(operation: str, names: dict[str, str]) -> dict[str, Any]:
    """Return a link to an operation. `names`: its parameters, with the fields of the response that they take."""
    return {
        "operationId": operation,
        "parameters": {name: f"$response.body#/{field}" for name, field in names.items()},
    }


def _problems(route: "Route") -> dict[str, Any]:
    return {
        str(status): {"description": _TITLES[status], "content": {MEDIA_TYPE: {"schema": REF_PROBLEM}}}
        for status in _error_statuses(route)
    }


REF_PROBLEM = {"$ref": REF.format(name="Problem")}


def _error_statuses(route: "Route") -> list[int]:
    if route.endpoint.guard is guards.anyone:
        return [422, 503]
    statuses = {401, 422, 503}
    if "{" in route.path:
        statuses |= {ERROR_MAPPINGS[Malformed].http_status, 403, 404}
    if route.path.startswith("/api/v1"):
        statuses |= {403, 404}
    if route.endpoint.body_type is not None:
        statuses |= {400, 408, 413, 415}
    if route.method != "GET" and route.endpoint.guard is not guards.board_reader:
        statuses |= {403, 404, 409, 429}
    return sorted(statuses | {*route.endpoint.traits.errors})
