"""The route table: every call of the API, who may make it, its handler and its properties."""

import html
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from laurels.core import limits
from laurels.http import guards, heavy_reads
from laurels.http.application import Application
from laurels.http.auditing import audited
from laurels.http.call import Endpoint, Guard, Handler, Traits
from laurels.http.docs_page import render_docs
from laurels.http.handlers import (
    access,
    audit,
    boards,
    dead_letters,
    hot_reads,
    live,
    moderation,
    operating,
    people,
    reads,
    reviews,
    schemas,
    scores,
    seasons,
    short,
    templates,
)
from laurels.http.heavy_reads import in_turn
from laurels.http.openapi import build_openapi
from laurels.http.routing import Answerer
from laurels.http.web_files import web_addresses
from laurels.ports import Scope
from laurels.service.laurels import Laurels
from laurels.settings import Settings

BOARD = "/api/v1/leaderboards/{UUID}"
USER = BOARD + "/users/{userId}"
PERSON = "/api/v1/users/{userId}"
PERIOD = BOARD + "/periods/{period}"
REVIEW = BOARD + "/reviews/{reviewId}"
POD = "/api/v1/pods/{podId}"
SCHEMA = POD + "/schemas/{schemaVersion}"
TEMPLATES = POD + "/templates"
TEMPLATE = TEMPLATES + "/{templateName}"
DEAD_LETTERS = POD + "/dead-letters"


# The page has a style and nothing else.
DOCS_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class Route(NamedTuple):
    tag: str
    method: str
    path: str
    endpoint: Endpoint


def route(
    tag: str,
    method: str,
    path: str,
    guard: Guard,
    handler: Handler,
    **traits: Any,
) -> Route:
    """Return a route. `traits`: the fields of `Traits`."""
    # Operators must be able to act when a server is overloaded.
    traits.setdefault("sheds", guard is not guards.admin)
    if traits.get("rows") is not None:
        handler = in_turn(handler, traits["rows"])
    if which := traits.get("audited"):
        handler = audited(handler, traits.get("status", 200), which)
    return Route(tag, method, path, Endpoint(handler, guard, Traits(**traits)))


ROUTES = [
    route(
        "Scores",
        "PUT",
        USER,
        guards.score_writer,
        scores.put_score,
        scope=Scope.SCORES_WRITE,
        hot=scores.hot_score,
        creates_board=True,
        idempotency_key=True,
        may_spool=True,
    ),
    route(
        "Scores",
        "POST",
        BOARD + "/scores",
        guards.board_writer,
        scores.post_scores,
        scope=Scope.SCORES_WRITE,
        hot=scores.hot_scores,
        creates_board=True,
        body_bytes=limits.BATCH_BODY_BYTES,
        idempotency_key=True,
        may_spool=True,
    ),
    route(
        "Ranks", "GET", BOARD + "/top", guards.board_reader, reads.get_top, rows=heavy_reads.page, hot=hot_reads.hot_top
    ),
    route(
        "Ranks",
        "GET",
        USER + "/rank",
        guards.board_reader,
        reads.get_rank,
        rows=heavy_reads.parts,
        hot=hot_reads.hot_rank,
    ),
    route(
        "Ranks",
        "GET",
        USER + "/around",
        guards.board_reader,
        reads.get_around,
        rows=heavy_reads.around,
        hot=hot_reads.hot_around,
    ),
    route("Ranks", "GET", BOARD + "/rank", guards.board_reader, reads.get_score_place, rows=heavy_reads.around),
    route("Ranks", "GET", BOARD + "/range", guards.board_reader, reads.get_range, rows=heavy_reads.page),
    route(
        "Ranks",
        "POST",
        BOARD + "/ranks",
        guards.board_reader,
        reads.post_ranks,
        rows=heavy_reads.users,
        body_bytes=limits.RANKS_BODY_BYTES,
    ),
    route("Ranks", "GET", BOARD + "/regions", guards.board_reader, reads.get_regions),
    route("Ranks", "GET", BOARD + "/search", guards.board_reader, reads.get_search, rows=heavy_reads.most),
    route("Ranks", "GET", BOARD + "/distribution", guards.board_reader, reads.get_distribution, rows=heavy_reads.most),
    route("Live", "GET", BOARD + "/live", guards.board_reader, live.get_live, websocket=True, errors=(426, 429)),
    route("Live", "GET", BOARD + "/stream", guards.board_reader, live.get_stream, errors=(429,)),
    route(
        "Ranks",
        "GET",
        "/api/v1/users/{userId}/scores",
        guards.key,
        reads.get_user_scores,
        rows=heavy_reads.pod_boards,
        personal=True,
    ),
    route(
        "Scores",
        "POST",
        PERSON + "/scores",
        guards.writer,
        scores.post_boards_score,
        scope=Scope.SCORES_WRITE,
        needs_body=True,
        idempotency_key=True,
    ),
    route(
        "Scores",
        "DELETE",
        USER,
        guards.board_writer,
        scores.delete_user,
        audited=True,
        scope=Scope.MODERATION,
        idempotency_key=True,
    ),
    route(
        "Scores",
        "POST",
        BOARD + "/removals",
        guards.board_writer,
        scores.post_removals,
        audited=True,
        needs_body=True,
        rows=heavy_reads.slow,
        scope=Scope.MODERATION,
        body_bytes=limits.RANKS_BODY_BYTES,
        idempotency_key=True,
    ),
    route(
        "Scores",
        "GET",
        USER + "/history",
        guards.board_pod_reader,
        reads.get_history,
        rows=heavy_reads.listed,
        personal=True,
    ),
    route("Scores", "GET", BOARD + "/events", guards.board_writer, reads.get_events, rows=heavy_reads.listed),
    route(
        "Boards",
        "POST",
        "/api/v1/leaderboards",
        guards.writer,
        boards.post_board,
        audited=True,
        scope=Scope.BOARDS_WRITE,
        status=201,
        idempotency_key=True,
    ),
    route("Boards", "GET", "/api/v1/leaderboards", guards.known, boards.get_boards, rows=heavy_reads.boards),
    route("Boards", "GET", BOARD, guards.board_reader, boards.get_board),
    route("Boards", "PATCH", BOARD, guards.board_writer, boards.patch_board, audited=True, scope=Scope.BOARDS_WRITE),
    route("Boards", "DELETE", BOARD, guards.board_writer, boards.delete_board, audited=True, scope=Scope.BOARDS_WRITE),
    route(
        "Boards",
        "POST",
        BOARD + "/deletion",
        guards.board_admin,
        boards.post_deletion,
        audited=True,
        needs_body=True,
        scope=Scope.BOARDS_WRITE,
        status=202,
    ),
    route("Boards", "GET", TEMPLATES, guards.writer, templates.get_templates, scope=Scope.BOARDS_WRITE),
    route("Boards", "GET", TEMPLATE, guards.writer, templates.get_template, scope=Scope.BOARDS_WRITE),
    route("Boards", "PUT", TEMPLATE, guards.writer, templates.put_template, audited=True, scope=Scope.BOARDS_WRITE),
    route(
        "Boards", "DELETE", TEMPLATE, guards.writer, templates.delete_template, audited=True, scope=Scope.BOARDS_WRITE
    ),
    route(
        "Boards",
        "POST",
        TEMPLATE + "/boards",
        guards.writer,
        templates.post_template_board,
        audited=True,
        scope=Scope.BOARDS_WRITE,
        status=201,
    ),
    route("Seasons", "GET", BOARD + "/periods", guards.board_reader, seasons.get_periods, rows=heavy_reads.listed),
    route(
        "Seasons",
        "POST",
        PERIOD + "/close",
        guards.board_writer,
        seasons.post_close,
        audited=True,
        scope=Scope.BOARDS_WRITE,
    ),
    route(
        "Seasons",
        "POST",
        PERIOD + "/extend",
        guards.board_writer,
        seasons.post_extend,
        audited=True,
        scope=Scope.BOARDS_WRITE,
    ),
    route(
        "Seasons", "GET", PERIOD + "/rewards", guards.board_writer, seasons.get_period_rewards, rows=heavy_reads.listed
    ),
    route(
        "Seasons",
        "GET",
        "/api/v1/users/{userId}/results",
        guards.key,
        seasons.get_user_results,
        rows=heavy_reads.listed,
        personal=True,
    ),
    route(
        "Seasons",
        "GET",
        "/api/v1/users/{userId}/rewards",
        guards.key,
        seasons.get_user_rewards,
        rows=heavy_reads.listed,
        personal=True,
    ),
    route(
        "Seasons",
        "POST",
        "/api/v1/rewards/{rewardId}/claim",
        guards.writer,
        seasons.post_claim,
        scope=Scope.SCORES_WRITE,
    ),
    route("Profiles", "PUT", PERSON, guards.writer, people.put_profile, needs_body=True, scope=Scope.SCORES_WRITE),
    route("Profiles", "PATCH", PERSON, guards.writer, people.patch_profile, scope=Scope.SCORES_WRITE),
    route("Profiles", "GET", PERSON, guards.key, people.get_profile, personal=True),
    route(
        "Profiles",
        "DELETE",
        PERSON,
        guards.writer,
        people.delete_person,
        audited=True,
        scope=Scope.MODERATION,
        idempotency_key=True,
    ),
    route(
        "Profiles",
        "POST",
        "/api/v1/users",
        guards.writer,
        people.post_profiles,
        scope=Scope.SCORES_WRITE,
        body_bytes=limits.PROFILES_BODY_BYTES,
    ),
    route("Profiles", "GET", "/api/v1/users", guards.writer, people.get_people, rows=heavy_reads.listed),
    route("Profiles", "PUT", PERSON + "/circles/{circle}", guards.writer, people.put_circle, scope=Scope.SCORES_WRITE),
    route(
        "Profiles",
        "DELETE",
        PERSON + "/circles/{circle}",
        guards.writer,
        people.delete_circle,
        scope=Scope.SCORES_WRITE,
    ),
    route(
        "Profiles", "GET", PERSON + "/export", guards.writer, people.get_person, audited=True, scope=Scope.MODERATION
    ),
    route(
        "Moderation",
        "GET",
        BOARD + "/reviews",
        guards.board_writer,
        reviews.get_reviews,
        rows=heavy_reads.listed,
        scope=Scope.MODERATION,
    ),
    route(
        "Moderation",
        "POST",
        REVIEW + "/accept",
        guards.board_writer,
        reviews.post_accept,
        audited=True,
        scope=Scope.MODERATION,
        may_continue=True,
    ),
    route(
        "Moderation",
        "POST",
        REVIEW + "/reject",
        guards.board_writer,
        reviews.post_reject,
        audited=True,
        scope=Scope.MODERATION,
    ),
    route(
        "Moderation",
        "PUT",
        USER + "/hidden",
        guards.board_writer,
        moderation.put_hidden_on_board,
        needs_body=True,
        audited=True,
        scope=Scope.MODERATION,
        idempotency_key=True,
    ),
    route(
        "Moderation",
        "DELETE",
        USER + "/hidden",
        guards.board_writer,
        moderation.delete_hidden_on_board,
        audited=True,
        scope=Scope.MODERATION,
        idempotency_key=True,
    ),
    route(
        "Moderation",
        "PUT",
        PERSON + "/hidden",
        guards.writer,
        moderation.put_hidden,
        needs_body=True,
        audited=True,
        scope=Scope.MODERATION,
        idempotency_key=True,
    ),
    route(
        "Moderation",
        "DELETE",
        PERSON + "/hidden",
        guards.writer,
        moderation.delete_hidden,
        audited=True,
        scope=Scope.MODERATION,
        idempotency_key=True,
    ),
    route(
        "Moderation",
        "POST",
        BOARD + "/void/preview",
        guards.board_writer,
        moderation.post_void_preview,
        scope=Scope.MODERATION,
        rows=heavy_reads.slow,
        body_bytes=limits.VOID_BODY_BYTES,
    ),
    route(
        "Moderation",
        "POST",
        BOARD + "/void",
        guards.board_writer,
        moderation.post_void,
        audited=True,
        scope=Scope.MODERATION,
        body_bytes=limits.VOID_BODY_BYTES,
        idempotency_key=True,
        may_continue=True,
    ),
    route(
        "Moderation",
        "POST",
        PERIOD + "/refreeze",
        guards.board_writer,
        moderation.post_refreeze,
        audited=True,
        scope=Scope.MODERATION,
        idempotency_key=True,
        may_continue=True,
    ),
    route(
        "Moderation",
        "GET",
        "/api/v1/acts",
        guards.writer,
        moderation.get_acts,
        rows=heavy_reads.listed,
        scope=Scope.MODERATION,
    ),
    route("Moderation", "GET", "/api/v1/acts/{actId}", guards.writer, moderation.get_act, scope=Scope.MODERATION),
    route(
        "Moderation",
        "POST",
        "/api/v1/acts/{actId}/restore",
        guards.writer,
        moderation.post_restore,
        audited=True,
        scope=Scope.MODERATION,
        may_continue=True,
    ),
    route("Pods and keys", "POST", "/api/v1/pods", guards.admin, access.post_pod, audited=True, status=201),
    route("Pods and keys", "GET", "/api/v1/pods", guards.admin, access.get_pods),
    route("Pods and keys", "PATCH", POD, guards.admin, access.patch_pod, audited=True),
    route("Pods and keys", "GET", POD + "/usage", guards.writer, access.get_usage),
    route(
        "Pods and keys",
        "POST",
        POD + "/keys",
        guards.admin,
        access.post_key,
        audited=True,
        status=201,
        idempotency_key=True,
    ),
    route("Pods and keys", "GET", POD + "/keys", guards.admin, access.get_keys, audited=access.reads_digests),
    route("Pods and keys", "DELETE", POD + "/keys/{keyId}", guards.admin, access.delete_key, audited=True),
    route(
        "Pods and keys",
        "POST",
        POD + "/keys/{keyId}/rotate",
        guards.admin,
        access.post_rotation,
        audited=True,
        status=201,
        idempotency_key=True,
    ),
    route(
        "Pods and keys",
        "POST",
        "/api/v1/admin-keys",
        guards.admin,
        access.post_admin_key,
        audited=True,
        status=201,
        idempotency_key=True,
    ),
    route("Pods and keys", "GET", "/api/v1/admin-keys", guards.admin, access.get_admin_keys),
    route("Pods and keys", "DELETE", "/api/v1/admin-keys/{keyId}", guards.admin, access.delete_admin_key, audited=True),
    route(
        "Pods and keys",
        "POST",
        "/api/v1/admin-keys/{keyId}/rotate",
        guards.admin,
        access.post_admin_rotation,
        audited=True,
        status=201,
        idempotency_key=True,
    ),
    route(
        "Pods and keys",
        "POST",
        POD + "/tokens",
        guards.writer,
        access.post_token,
        status=201,
        scope=Scope.SCORES_WRITE,
    ),
    route(
        "Pods and keys",
        "DELETE",
        POD + "/tokens/{userId}",
        guards.writer,
        access.delete_tokens,
        audited=True,
        scope=Scope.SCORES_WRITE,
    ),
    route("Pods and keys", "PUT", POD + "/webhook", guards.admin, access.put_webhook, audited=True),
    route(
        "Pods and keys",
        "POST",
        POD + "/webhook/rotate",
        guards.admin,
        access.post_webhook_rotation,
        audited=True,
        status=201,
    ),
    route("Pods and keys", "GET", POD + "/webhook", guards.admin, access.get_webhook),
    route("Pods and keys", "DELETE", POD + "/webhook", guards.admin, access.delete_webhook, audited=True),
    route("Events", "GET", POD + "/schemas", guards.writer, schemas.get_schemas, scope=Scope.BOARDS_WRITE),
    route("Events", "GET", SCHEMA, guards.writer, schemas.get_schema, scope=Scope.BOARDS_WRITE),
    route("Events", "PUT", SCHEMA, guards.writer, schemas.put_schema, audited=True, scope=Scope.BOARDS_WRITE),
    route("Events", "PATCH", SCHEMA, guards.writer, schemas.patch_schema, audited=True, scope=Scope.BOARDS_WRITE),
    route("Events", "DELETE", SCHEMA, guards.writer, schemas.delete_schema, audited=True, scope=Scope.BOARDS_WRITE),
    route(
        "Events",
        "POST",
        POD + "/schema-trials",
        guards.writer,
        schemas.post_trial,
        scope=Scope.BOARDS_WRITE,
        body_bytes=limits.RECORD_BYTES + limits.BODY_BYTES,
    ),
    route(
        "Events",
        "GET",
        DEAD_LETTERS,
        guards.writer,
        dead_letters.get_dead_letters,
        scope=Scope.BOARDS_WRITE,
        errors=(409,),
    ),
    route(
        "Events",
        "POST",
        DEAD_LETTERS + "/discard",
        guards.writer,
        dead_letters.post_discard,
        audited=True,
        scope=Scope.BOARDS_WRITE,
        errors=(409,),
    ),
    route(
        "Events",
        "GET",
        DEAD_LETTERS + "/{letterId}",
        guards.writer,
        dead_letters.get_dead_letter,
        scope=Scope.BOARDS_WRITE,
        errors=(409,),
    ),
    route(
        "Events",
        "POST",
        POD + "/replays",
        guards.writer,
        dead_letters.post_replay,
        audited=True,
        scope=Scope.BOARDS_WRITE,
    ),
    route(
        "Short form",
        "POST",
        "/v1/scores",
        guards.default_board_writer,
        short.post_short_score,
        scope=Scope.SCORES_WRITE,
        idempotency_key=True,
        may_spool=True,
    ),
    route("Short form", "GET", "/v1/scores", guards.default_board_reader, short.get_short_scores),
    route("Short form", "GET", "/v1/scores/{userId}", guards.default_board_reader, short.get_short_score),
    route("Operating", "GET", "/healthz", guards.anyone, operating.get_health, scope=None, needs_ledger=False),
    route(
        "Operating",
        "GET",
        "/readyz",
        guards.anyone,
        operating.get_ready,
        scope=None,
        answers_503=True,
        needs_ledger=False,
    ),
    route("Operating", "GET", "/metrics", guards.anyone, operating.get_metrics, scope=None, needs_ledger=False),
    route("Operating", "GET", "/api/v1/audit", guards.admin, audit.get_audit, rows=heavy_reads.listed),
    route("Operating", "GET", "/api/v1/jobs", guards.admin, operating.get_jobs),
    route("Operating", "GET", "/api/v1/spool", guards.admin, operating.get_spool, errors=(409,)),
    route(
        "Operating",
        "POST",
        "/api/v1/spool/replay",
        guards.admin,
        operating.post_spool_replay,
        audited=True,
        errors=(409,),
    ),
    route("Operating", "GET", "/api/v1/verify", guards.admin, operating.get_verify, errors=(429,)),
    route("Operating", "POST", "/api/v1/rebuild", guards.admin, operating.post_rebuild, audited=True),
]


def build_app(
    laurels: Laurels,
    *,
    probes_only: bool = False,
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
) -> ASGIApp:
    """Return the application. `probes_only`: with the health checks and metrics alone."""
    served = [each for each in ROUTES if not probes_only or each.endpoint.guard is guards.anyone]
    calls = [(address.method, address.path, address.endpoint) for address in served]
    pages = [] if probes_only else [*_documents(build_openapi(ROUTES)), *web_addresses()]
    return Application(laurels, [*calls, *pages], settings.server, settings.limits)


def _documents(openapi: bytes) -> list[tuple[str, str, Answerer]]:
    docs = render_docs(openapi)

    async def get_openapi(request: Request) -> Response:
        del request
        return Response(openapi, media_type="application/json")

    async def get_docs(request: Request) -> Response:
        address = html.escape(f"{request.url.scheme}://{request.url.netloc}")
        return HTMLResponse(docs.replace("{{address}}", address), headers=DOCS_HEADERS)

    return [("GET", "/openapi.json", get_openapi), ("GET", "/docs", get_docs)]
