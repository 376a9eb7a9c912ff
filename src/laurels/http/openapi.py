"""The OpenAPI document, made from the route table and the types of the handlers."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from laurels import __version__
from laurels.core import limits
from laurels.errors import OUTSIDE, Malformed
from laurels.http import guards
from laurels.http.answers import Problem
from laurels.http.call import Endpoint, Streamed, Text
from laurels.http.fields import BoardUuid, Circle, DeadLetterId, PodId, SchemaVersion, UserId
from laurels.http.live import Live
from laurels.http.live_answers import LiveFrame
from laurels.http.operating_answers import RebuildLine, VerifyLine
from laurels.http.problems import MEDIA_TYPE
from laurels.http.requests import ScoreItem

if TYPE_CHECKING:
    from laurels.http.routes import Address

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
}
TAKE_IDEMPOTENCY_KEY = {
    "put_score", "post_scores", "post_short_score", "delete_user", "post_board", "post_key", "put_hidden",
    "put_hidden_on_board", "delete_hidden", "delete_hidden_on_board", "post_void", "post_refreeze", "delete_person",
}  # fmt: skip
MAY_GO_ON = {"post_void", "post_restore", "post_refreeze"}
MAY_SPOOL = {"put_score", "post_scores", "post_short_score"}
_TITLES = {outside.http_status: outside.title for outside in OUTSIDE.values()}


def build_openapi(addresses: Sequence["Address"]) -> bytes:
    endpoints = [address.endpoint for address in addresses]
    types = _types(endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    by_type = dict(zip(map(str, types), schemas, strict=True))
    # The items of a batch are read one by one, so the type of the list does not tell theirs.
    components["ScoreBatch"]["properties"]["scores"]["items"] = {"$ref": REF.format(name="ScoreItem")}
    paths: dict[str, dict[str, Any]] = {}
    for address in addresses:
        paths.setdefault(address.path, {})[address.method.lower()] = _operation(address, by_type, components)
    return _plain_patterns(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Laurels",
                "version": __version__,
                "description": "A real-time leaderboard service. Errors are `application/problem+json` (RFC 9457) "
                "with a stable `code`. Keys travel as `Authorization: Bearer KEY` or `X-API-Key: KEY`.",
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
            # No key at all is fine where a board is public.
            "security": [{"bearer": []}, {"key": []}, {}],
        }
    )


def _plain_patterns(document: dict[str, Any]) -> bytes:
    """In JSON Schema `$` is the end and nothing else, and not every reader knows look-aheads."""
    return msgspec.json.encode(document).replace(msgspec.json.encode(limits.END)[1:-1], b"$")


def _types(endpoints: Iterable[Endpoint]) -> list[Any]:
    found: list[Any] = [Problem, ScoreItem, VerifyLine, RebuildLine, *PATH_PARTS.values()]
    for each in endpoints:
        found += [each.query_type, each.body_type, each.answer_type]
    found += get_args(LiveFrame)
    unique = {str(kind): kind for kind in found if kind not in {None, Streamed, Text, Live}}
    return list(unique.values())


def _operation(address: "Address", by_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    called = address.endpoint
    operation: dict[str, Any] = {
        "operationId": called.handler.__name__,
        "tags": [address.tag],
        "summary": called.summary,
        "parameters": _path_parameters(address.path, by_type) + _query_parameters(called, by_type, components),
        "responses": _responses(address, by_type),
    }
    if called.description:
        operation["description"] = called.description
    if called.handler.__name__ in TAKE_IDEMPOTENCY_KEY:
        operation["parameters"].append(_idempotency_key())
    if called.body_type is not None:
        schema = by_type[str(called.body_type)]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
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
    """A query parameter that is not given is absent, not null."""
    choices = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if not choices:
        return schema
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _idempotency_key() -> dict[str, Any]:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "The same call with the same key takes effect once.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    }


def _responses(address: "Address", by_type: dict[str, Any]) -> dict[str, Any]:
    called = address.endpoint
    if called.answer_type is Streamed:
        content = {"application/x-ndjson": {"schema": {"type": "string"}}}
    elif called.answer_type is Live:
        content = {"text/event-stream": {"schema": {"type": "string"}}}
    elif called.answer_type is Text:
        content = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": by_type[str(called.answer_type)]}}
    if called.handler.__name__ == "get_live":
        return {"101": {"description": "Frames follow"}} | _problems(address)
    responses: dict[str, Any] = {str(called.status): {"description": "Done", "content": content}}
    if called.handler.__name__ in MAY_SPOOL:
        responses["202"] = {"description": "Kept on this server's disk until the ledger is back", "content": content}
    if called.handler.__name__ in MAY_GO_ON:
        responses["202"] = {"description": "Begun; it goes on", "content": content}
    responses |= _problems(address)
    if address.path == "/readyz":
        responses["503"]["content"]["application/json"] = content["application/json"]
    return responses


def _problems(address: "Address") -> dict[str, Any]:
    return {
        str(status): {"description": _TITLES[status], "content": {MEDIA_TYPE: {"schema": REF_PROBLEM}}}
        for status in _error_statuses(address)
    }


REF_PROBLEM = {"$ref": REF.format(name="Problem")}


def _error_statuses(address: "Address") -> list[int]:
    if address.endpoint.guard is guards.anyone:
        return [422, 503]
    statuses = {401, 422, 503}
    if "{" in address.path:
        statuses |= {OUTSIDE[Malformed].http_status, 403, 404}
    if address.path.startswith("/api/v1"):
        statuses |= {403, 404}
    if address.endpoint.body_type is not None:
        statuses |= {400, 408, 413, 415}
    if address.method != "GET" and address.endpoint.guard is not guards.board_reader:
        statuses |= {403, 404, 409, 429}
    if address.path == "/api/v1/verify" or address.endpoint.answer_type is Live:
        statuses |= {429}
    if address.path.endswith("/live"):
        statuses |= {426}
    if "/dead-letters" in address.path or address.path.startswith("/api/v1/spool"):
        # A server without Kafka, or without a spool.
        statuses |= {409}
    return sorted(statuses)
