"""The map of the API: every address, who may call it, and what handles it."""

import html
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from laurels.core import limits
from laurels.http import guards
from laurels.http.application import Answerer, Application
from laurels.http.call import Endpoint, Guard, Handler
from laurels.http.docs_page import render_docs
from laurels.http.handlers import (
    access,
    boards,
    dead_letters,
    live,
    moderation,
    operating,
    people,
    reads,
    schemas,
    scores,
    seasons,
    short,
)
from laurels.http.openapi import build_openapi
from laurels.http.web_files import web_addresses
from laurels.service.laurels import Laurels

BOARD = "/api/v1/leaderboards/{UUID}"
USER = BOARD + "/users/{userId}"
PERSON = "/api/v1/users/{userId}"
PERIOD = BOARD + "/periods/{period}"
POD = "/api/v1/pods/{podId}"
SCHEMA = POD + "/schemas/{schemaVersion}"
DEAD_LETTERS = POD + "/dead-letters"


class Address(NamedTuple):
    tag: str
    method: str
    path: str
    endpoint: Endpoint


def address(
    tag: str,
    method: str,
    path: str,
    guard: Guard,
    handler: Handler,
    *,
    status: int = 200,
    body_bytes: int = limits.BODY_BYTES,
) -> Address:
    needs_ledger = guard is not guards.anyone
    endpoint = Endpoint(handler, guard, status=status, body_bytes=body_bytes, needs_ledger=needs_ledger)
    return Address(tag, method, path, endpoint)


ADDRESSES = [
    address("Scores", "PUT", USER, guards.board_writer, scores.put_score),
    address(
        "Scores", "POST", BOARD + "/scores", guards.board_writer, scores.post_scores, body_bytes=limits.BATCH_BODY_BYTES
    ),
    address("Ranks", "GET", BOARD + "/top", guards.board_reader, reads.get_top),
    address("Ranks", "GET", USER + "/rank", guards.board_reader, reads.get_rank),
    address("Ranks", "GET", USER + "/around", guards.board_reader, reads.get_around),
    address(
        "Ranks", "POST", BOARD + "/ranks", guards.board_reader, reads.post_ranks, body_bytes=limits.RANKS_BODY_BYTES
    ),
    address("Ranks", "GET", BOARD + "/regions", guards.board_reader, reads.get_regions),
    address("Ranks", "GET", BOARD + "/search", guards.board_reader, reads.get_search),
    address("Ranks", "GET", BOARD + "/distribution", guards.board_reader, reads.get_distribution),
    address("Live", "GET", BOARD + "/live", guards.board_reader, live.get_live),
    address("Live", "GET", BOARD + "/stream", guards.board_reader, live.get_stream),
    address("Ranks", "GET", "/api/v1/users/{userId}/scores", guards.key, reads.get_user_scores),
    address("Scores", "DELETE", USER, guards.board_writer, scores.delete_user),
    address("Scores", "GET", USER + "/history", guards.board_pod_reader, reads.get_history),
    address("Scores", "GET", BOARD + "/events", guards.board_writer, reads.get_events),
    address("Boards", "POST", "/api/v1/leaderboards", guards.writer, boards.post_board, status=201),
    address("Boards", "GET", "/api/v1/leaderboards", guards.known, boards.get_boards),
    address("Boards", "GET", BOARD, guards.board_reader, boards.get_board),
    address("Boards", "PATCH", BOARD, guards.board_writer, boards.patch_board),
    address("Boards", "DELETE", BOARD, guards.board_writer, boards.delete_board),
    address("Seasons", "GET", BOARD + "/periods", guards.board_reader, seasons.get_periods),
    address("Seasons", "POST", PERIOD + "/close", guards.board_writer, seasons.post_close),
    address("Seasons", "POST", PERIOD + "/extend", guards.board_writer, seasons.post_extend),
    address("Seasons", "GET", PERIOD + "/rewards", guards.board_pod_reader, seasons.get_period_rewards),
    address("Seasons", "GET", "/api/v1/users/{userId}/results", guards.key, seasons.get_user_results),
    address("Seasons", "GET", "/api/v1/users/{userId}/rewards", guards.key, seasons.get_user_rewards),
    address("Seasons", "POST", "/api/v1/rewards/{rewardId}/claim", guards.writer, seasons.post_claim),
    address("People", "PUT", PERSON, guards.writer, people.put_profile),
    address("People", "PATCH", PERSON, guards.writer, people.patch_profile),
    address("People", "GET", PERSON, guards.key, people.get_profile),
    address("People", "DELETE", PERSON, guards.writer, people.delete_person),
    address(
        "People",
        "POST",
        "/api/v1/users",
        guards.writer,
        people.post_profiles,
        body_bytes=limits.PROFILES_BODY_BYTES,
    ),
    address("People", "GET", "/api/v1/users", guards.writer, people.get_people),
    address("People", "PUT", PERSON + "/circles/{circle}", guards.writer, people.put_circle),
    address("People", "DELETE", PERSON + "/circles/{circle}", guards.writer, people.delete_circle),
    address("People", "GET", PERSON + "/export", guards.writer, people.get_person),
    address("Moderation", "PUT", USER + "/hidden", guards.board_writer, moderation.put_hidden_on_board),
    address("Moderation", "DELETE", USER + "/hidden", guards.board_writer, moderation.delete_hidden_on_board),
    address("Moderation", "PUT", PERSON + "/hidden", guards.writer, moderation.put_hidden),
    address("Moderation", "DELETE", PERSON + "/hidden", guards.writer, moderation.delete_hidden),
    address(
        "Moderation",
        "POST",
        BOARD + "/void",
        guards.board_writer,
        moderation.post_void,
        body_bytes=limits.VOID_BODY_BYTES,
    ),
    address("Moderation", "POST", PERIOD + "/refreeze", guards.board_writer, moderation.post_refreeze),
    address("Moderation", "GET", "/api/v1/acts", guards.writer, moderation.get_acts),
    address("Moderation", "GET", "/api/v1/acts/{actId}", guards.writer, moderation.get_act),
    address("Moderation", "POST", "/api/v1/acts/{actId}/restore", guards.writer, moderation.post_restore),
    address("Pods and keys", "POST", "/api/v1/pods", guards.admin, access.post_pod, status=201),
    address("Pods and keys", "GET", "/api/v1/pods", guards.admin, access.get_pods),
    address("Pods and keys", "POST", POD + "/keys", guards.admin, access.post_key, status=201),
    address("Pods and keys", "GET", POD + "/keys", guards.admin, access.get_keys),
    address("Pods and keys", "DELETE", POD + "/keys/{keyId}", guards.admin, access.delete_key),
    address("Pods and keys", "PUT", POD + "/webhook", guards.admin, access.put_webhook),
    address("Pods and keys", "GET", POD + "/webhook", guards.admin, access.get_webhook),
    address("Pods and keys", "DELETE", POD + "/webhook", guards.admin, access.delete_webhook),
    address("Events", "GET", POD + "/schemas", guards.writer, schemas.get_schemas),
    address("Events", "GET", SCHEMA, guards.writer, schemas.get_schema),
    address("Events", "PUT", SCHEMA, guards.writer, schemas.put_schema),
    address("Events", "PATCH", SCHEMA, guards.writer, schemas.patch_schema),
    address("Events", "DELETE", SCHEMA, guards.writer, schemas.delete_schema),
    address(
        "Events",
        "POST",
        POD + "/schema-trials",
        guards.writer,
        schemas.post_trial,
        body_bytes=limits.RECORD_BYTES + limits.BODY_BYTES,
    ),
    address("Events", "GET", DEAD_LETTERS, guards.writer, dead_letters.get_dead_letters),
    address("Events", "GET", DEAD_LETTERS + "/{letterId}", guards.writer, dead_letters.get_dead_letter),
    address("Events", "POST", POD + "/replays", guards.writer, dead_letters.post_replay),
    address("Short form", "POST", "/v1/scores", guards.default_board_writer, short.post_short_score),
    address("Short form", "GET", "/v1/scores", guards.default_board_reader, short.get_short_scores),
    address("Short form", "GET", "/v1/scores/{userId}", guards.default_board_reader, short.get_short_score),
    address("Operating", "GET", "/healthz", guards.anyone, operating.get_health),
    address("Operating", "GET", "/readyz", guards.anyone, operating.get_ready),
    address("Operating", "GET", "/metrics", guards.anyone, operating.get_metrics),
    address("Operating", "GET", "/api/v1/jobs", guards.admin, operating.get_jobs),
    address("Operating", "GET", "/api/v1/spool", guards.admin, operating.get_spool),
    address("Operating", "POST", "/api/v1/spool/replay", guards.admin, operating.post_spool_replay),
    address("Operating", "GET", "/api/v1/verify", guards.admin, operating.get_verify),
    address("Operating", "POST", "/api/v1/rebuild", guards.admin, operating.post_rebuild),
]


def build_app(laurels: Laurels, *, probes_only: bool = False) -> ASGIApp:
    """`probes_only`: whether it is alive and ready, and its metrics; nothing else."""
    served = [each for each in ADDRESSES if not probes_only or each.endpoint.guard is guards.anyone]
    calls = [(address.method, address.path, address.endpoint) for address in served]
    return Application(
        laurels, calls if probes_only else [*calls, *_documents(build_openapi(ADDRESSES)), *web_addresses()]
    )


def _documents(openapi: bytes) -> list[tuple[str, str, Answerer]]:
    docs = render_docs(openapi)

    async def get_openapi(request: Request) -> Response:
        del request
        return Response(openapi, media_type="application/json")

    async def get_docs(request: Request) -> Response:
        address = html.escape(f"{request.url.scheme}://{request.url.netloc}")
        return HTMLResponse(docs.replace("{{address}}", address))

    return [("GET", "/openapi.json", get_openapi), ("GET", "/docs", get_docs)]
