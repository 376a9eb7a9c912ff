"""Code that both SQL ledgers share: the mapping of values to columns, errors, and folds."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from laurels.core.board import Board, PublicField, Reshard
from laurels.core.limits import CIRCLES
from laurels.core.order import Order, Ties
from laurels.core.people import Hidden, Profile, ProfileChange, SegmentKind, hidden_on, segments_of
from laurels.core.quotas import Quotas
from laurels.core.reviews import ReviewRule
from laurels.core.rewards import Reward
from laurels.core.schemas import Schema, SchemaState, SchemaTerms
from laurels.core.scores import MAX_DOUBLE, Operation, Rule, Standing
from laurels.core.windows import Period, PeriodState, Window
from laurels.errors import Busy, Conflict, NotFound, Stale
from laurels.ports import (
    AuditEntry,
    Cursors,
    Event,
    Key,
    Pod,
    RecordOutcome,
    Refolded,
    Role,
    Row,
    Scope,
    StoredAction,
    StoredReview,
    Template,
)

# Scores are summed in this unit, so that no sum overflows.
SUM_UNIT = 2.0**64
# The kind of the actions that void events which wait for a moderator.
REVIEW = "review"
# The fact that stores how far events have been published.
PUBLISHED = "published_events"
# The tables that are copied when another ledger takes over the data, referenced tables first. `jobs` is left out,
# because periodic jobs start afresh.
TABLES = (
    "pods", "keys", "boards", "periods", "actions", "events", "scores", "bases", "finals", "grants", "webhooks",
    "outbox", "profiles", "hides", "erased", "schemas", "replays", "counters", "facts", "token_revocations",
    "audit", "usage", "templates", "kept_metadata",
)  # fmt: skip


class RowBatch(NamedTuple):
    """Some rows of a table, as stored."""

    table: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def insert_values(board: Board) -> tuple[Any, ...]:
    """Return the columns of a new board, in the order of the statement `insert_board`."""
    return (
        board.uuid,
        board.pod_id,
        board.name,
        board.rule.value,
        board.order.value,
        board.ties.value,
        board.capacity,
        board.min_score,
        board.max_score,
        board.public,
        _json(board.windows),
        _json(board.segments),
        board.start_at,
        board.end_at,
        board.archived_at,
        board.created_at,
        board.revision,
        _metadata_text(board),
        board.grace_s,
        board.flush_ms,
        _json(board.rewards),
        board.keep_events_days,
        board.keep_periods_days,
        board.pruned_before,
        _json(board.public_fields),
        board.players_may_write,
        board.player_writes_per_minute,
        *_shard_values(board),
        board.created_by,
        _json(board.review),
        board.subscore,
        board.score_ttl_s,
        _json(board.operations),
    )


def read_sum(count: int, units: float | None) -> tuple[int, float]:
    """Return a number of scores and their sum, which is at most the largest double."""
    total = (units or 0.0) * SUM_UNIT
    return count, max(-MAX_DOUBLE, min(MAX_DOUBLE, total))


def key_values(key: Key) -> tuple[Any, ...]:
    """Return the columns of a key, in the order of the statement `insert_key`."""
    scopes = None if key.scopes is None else " ".join(key.scopes)
    return (
        key.key_id,
        key.pod_id,
        key.role.value,
        key.label,
        key.digest,
        key.created_at,
        key.expires_at,
        scopes,
        key.used_at,
    )


def read_key(columns: Iterable[Any]) -> Key:
    key_id, pod_id, role, label, digest, created_at, expires_at, scopes, used_at = columns
    allowed = None if scopes is None else tuple(map(Scope, scopes.split()))
    return Key(key_id, pod_id, Role(role), label, digest, created_at, expires_at, allowed, used_at)


def template_values(template: Template) -> tuple[Any, ...]:
    """Return the columns of a template, in the order of the statement `put_template`."""
    definition = _json(template.board)
    return (
        template.pod_id, template.name, template.prefix, definition, template.created_at, template.updated_at,
    )  # fmt: skip


def read_template(columns: Iterable[Any]) -> Template:
    pod_id, name, prefix, definition, created_at, updated_at = columns
    board = msgspec.json.decode(definition, type=Board)
    return Template(pod_id, name, prefix, board, created_at, updated_at)


def read_pod(columns: Iterable[Any]) -> Pod:
    pod_id, name, created_at, origins, quotas = columns
    return Pod(pod_id, name, created_at, tuple(origins.split()), msgspec.json.decode(quotas, type=Quotas))


def pod_values(pod_id: str, origins: Sequence[str] | None, quotas: Quotas | None) -> tuple[Any, ...]:
    """Return the parameters of the statement `change_pod`."""
    return (None if origins is None else " ".join(origins), None if quotas is None else _json(quotas), pod_id)


def audit_values(entry: AuditEntry) -> tuple[Any, ...]:
    """Return the columns of a new entry of the audit log, in the order of the statement `begin_audit`."""
    return (
        entry.at,
        entry.pod_id,
        entry.uuid,
        entry.user_id,
        entry.key_id,
        entry.role,
        entry.address,
        entry.request_id,
        entry.route,
        entry.path,
    )


def format_cursors(cursors: Cursors) -> str:
    """Return cursors as the fact stores them: JSON, or only the cursor for all pods if no pod is behind."""
    return _json(cursors) if cursors.behind else cursors.every


def read_cursors(text: str) -> Cursors:
    return msgspec.json.decode(text, type=Cursors) if text.startswith("{") else Cursors(text)


def schema_values(schema: Schema) -> tuple[Any, ...]:
    """Return the columns of a schema, in the order of the statement `put_schema`."""
    terms = msgspec.json.encode(schema.terms).decode()
    return (schema.pod_id, schema.version, schema.state.value, terms, schema.created_at, schema.updated_at)


def read_schema(columns: Sequence[Any]) -> Schema:
    pod_id, version, state, terms, created_at, updated_at = columns
    decoded = msgspec.json.decode(terms, type=SchemaTerms)
    return Schema(pod_id, version, SchemaState(state), decoded, created_at, updated_at)


def update_values(board: Board) -> tuple[Any, ...]:
    """Return the columns of a changed board, in the order of the statement `update_board`."""
    return (
        board.name,
        board.capacity,
        board.min_score,
        board.max_score,
        board.public,
        _json(board.windows),
        board.start_at,
        board.end_at,
        board.archived_at,
        _metadata_text(board),
        board.grace_s,
        board.flush_ms,
        _json(board.rewards),
        board.keep_events_days,
        board.keep_periods_days,
        board.pruned_before,
        _json(board.public_fields),
        board.players_may_write,
        board.player_writes_per_minute,
        *_shard_values(board),
        _json(board.segments),
        _json(board.filling),
        _json(board.review),
        board.score_ttl_s,
        board.id,
        board.revision,
    )


def _shard_values(board: Board) -> tuple[Any, ...]:
    return (board.shards, None if board.reshard is None else _json(board.reshard), board.rank_on_write)


def read_board(columns: tuple[object, ...], periods: tuple[Period, ...]) -> Board:
    """Return a board. `columns` are in the order of the fields of `Board`, without the periods."""
    fields = dict(zip(Board.__struct_fields__, (*columns, periods), strict=True))
    fields["rule"] = Rule(str(fields["rule"]))
    fields["order"] = Order(str(fields["order"]))
    fields["ties"] = Ties(str(fields["ties"]))
    fields["public"] = bool(fields["public"])
    fields["windows"] = msgspec.json.decode(str(fields["windows"]), type=tuple[Window, ...])
    fields["segments"] = msgspec.json.decode(str(fields["segments"]), type=tuple[str, ...])
    fields["rewards"] = msgspec.json.decode(str(fields["rewards"]), type=tuple[Reward, ...])
    fields["public_fields"] = msgspec.json.decode(str(fields["public_fields"]), type=tuple[PublicField, ...])
    fields["players_may_write"] = bool(fields["players_may_write"])
    fields["operations"] = msgspec.json.decode(str(fields["operations"]), type=tuple[Operation, ...])
    fields["subscore"] = None if fields["subscore"] is None else Order(str(fields["subscore"]))
    fields["review"] = msgspec.json.decode(str(fields["review"]), type=tuple[ReviewRule, ...])
    fields["filling"] = msgspec.json.decode(str(fields["filling"]), type=tuple[str, ...])
    if fields["reshard"] is not None:
        fields["reshard"] = msgspec.json.decode(str(fields["reshard"]), type=Reshard)
    if fields["rank_on_write"] is not None:
        fields["rank_on_write"] = bool(fields["rank_on_write"])
    if fields["metadata"] is not None:
        fields["metadata"] = msgspec.json.decode(str(fields["metadata"]))
    return Board(**fields)  # type: ignore[arg-type]


def read_period(columns: Iterable[Any]) -> Period:
    """Return a period. `columns` are in the order of the fields of `Period`."""
    period_id, window, name, start, end, state, terms, total_users, frozen_at, replaces = columns
    return Period(period_id, window, name, start, end, PeriodState(state), terms, total_users, frozen_at, replaces)


def changed_periods(periods: Iterable[Period]) -> list[tuple[int | None, int | None, str, str | None, int]]:
    """Return the columns of changed periods, in the order of the statement `update_period`."""
    return [(period.start, period.end, period.state.value, period.terms, period.id) for period in periods]


def with_periods(board: Board, added: Iterable[Period]) -> Board:
    """Return a board with more periods, ordered by start."""
    periods = sorted((*board.periods, *added), key=lambda period: (period.start or 0, period.id))
    return replace(board, periods=tuple(periods))


def changed_meanwhile() -> Conflict:
    return Conflict("changed_meanwhile", "This board was changed at the same time. Read it and try again.")


def events_ahead() -> Conflict:
    return Conflict(
        "period_has_scores", "The next period has scores or is about to begin: it is too late to extend this one."
    )


def events_after_end() -> Conflict:
    return Conflict(
        "end_before_scores",
        "The board has scores at or after that time. Choose a later endTime, or set the status to ENDED to end the "
        "board after its last score.",
        field="endTime",
    )


# The statements that remove what belonged to a deleted board, in this order.
PURGES = (
    "purge_events", "purge_scores", "purge_bases", "purge_finals", "purge_grants", "purge_messages", "purge_actions",
    "purge_hides", "purge_metadata", "purge_periods",
)  # fmt: skip


def deleted_uuid(board: Board) -> str:
    """Return the UUID of a deleted board, so that another board can take its own. No board can be named like that."""
    return f"deleted/{board.id}"


def nothing_to_remove(user_id: str) -> NotFound:
    return NotFound(
        "user_not_found",
        f"User {user_id!r} has no score in an open period of this board. Final ranks are not changed.",
        field="userId",
    )


# The states of a period in which its final ranks can be written.
WRITABLE = ("closed", "refreezing")


def refreeze_running() -> Busy:
    return Busy("refreeze_running", "Final ranks of this board are being corrected. Try again when that is done.")


def action_running() -> Busy:
    return Busy("act_running", "Events of this board are being voided or restored. Try again when that is done.")


def events_pruned(period: Period) -> Conflict:
    return Conflict("events_pruned", f"Some events of the period {period.name!r} have been removed.")


def not_refreezable(period: Period) -> Conflict:
    return Conflict(
        "period_not_final",
        f"The period {period.name!r} has no final ranks that can be corrected: it is not frozen, it has been replaced, "
        "or the ledger does not know which events had arrived when it was closed.",
    )


def read_successor(found: Any) -> tuple[int, int, str] | None:
    """Return the key of the grant that replaced another one; None if the period was not replaced.

    Raises `Conflict` if the period was replaced and the user has no such grant in the new one.
    """
    if found is None:
        return None
    if found[0] is None:
        raise Conflict(
            "reward_withdrawn",
            "Final ranks were corrected, and the user no longer earns this reward.",
            field="rewardId",
        )
    period_id, place, reward = found
    return period_id, place, reward


def edition_name(name: str, number: int) -> str:
    """Return the name of a period that another one replaced."""
    return f"{name}@{number}"


def not_closed() -> Stale:
    return Stale("changed_meanwhile", "Final ranks can't be written: the period is neither closed nor being refrozen.")


def need_final(total: int | None) -> int:
    """Return the total of a frozen period; raise `Stale` if it is None, because the final ranks have been pruned.

    Ranks that were read before the total are complete, because they are removed after the period is marked as pruned.
    """
    if total is None:
        raise Stale("changed_meanwhile", "The final ranks of this period were pruned a moment ago.")
    return total


HIDDEN = tuple(Hidden)
# Added to the column `hidden` of rows that have expired.
EXPIRED = 4


def read_hidden(value: int) -> tuple[Hidden, bool]:
    """Return how a row is hidden, and whether it has expired."""
    return HIDDEN[value % EXPIRED], value >= EXPIRED


def hidden_value(row: Row) -> int:
    return int(row.hidden) + EXPIRED * row.expired


def digest_of(pod_id: str, user_id: str) -> bytes:
    """Return the digest that is kept of an erased user's id."""
    return hashlib.sha256(f"{pod_id}/{user_id}".encode()).digest()


def format_segments(segments: Sequence[str]) -> str | None:
    return " ".join(segments) or None


def segment_range(kind: SegmentKind) -> tuple[str, str]:
    """Return the range of segments of a kind: the first text is included, the second is not."""
    return f"{kind}:", f"{kind};"


def format_circles(circles: Iterable[str]) -> str:
    """Return circles in the format of a row's segments."""
    return " ".join(segments_of([SegmentKind.CIRCLE], None, circles))


def read_profile(columns: Iterable[Any]) -> Profile:
    user_id, display_name, avatar_url, region, region_at, circles, attributes = columns
    named = tuple(circle.partition(":")[2] for circle in circles.split())
    return Profile(user_id, display_name, avatar_url, region, region_at, named, attributes)


def changed_profile(change: ProfileChange, profile: Profile, at: int) -> Profile:
    changed = change.made_to(profile, at)
    if len(changed.circles) > CIRCLES and len(changed.circles) > len(profile.circles):
        raise Conflict("too_many_circles", f"A user can be in at most {CIRCLES} circles.", field="circles")
    return changed


def quoted_user(user_id: str) -> str:
    """Return a user id as it appears in the JSON of messages."""
    return f'"userId":{msgspec.json.encode(user_id).decode()}'


def with_hides(
    profiles: Iterable[Profile], hides: Iterable[tuple[str, int, int]]
) -> list[tuple[Profile, dict[int, Hidden]]]:
    where: dict[str, dict[int, Hidden]] = {}
    for user_id, board_id, how in hides:
        where.setdefault(user_id, {})[board_id] = HIDDEN[how]
    return [(profile, where.get(profile.user_id, {})) for profile in profiles]


def stale(board: Board) -> Stale:
    return Stale("changed_meanwhile", f"Board {board.uuid!r} was changed a moment ago. Try again.")


def compare(
    event: Event,
    user_id: str,
    score: float,
    at: int,
    stamped: bool,
    metadata: str | None,
    subscore: int,
    operation: str | None,
) -> RecordOutcome:
    """Return DUPLICATE if an event equals the stored one with the same id, else CONFLICT.

    The other arguments are the values of the stored event.
    """
    # A retry of an event without a time gets a new time from the server's clock. An export states the stored time.
    same_time = at == event.at if not event.stamped else bool(stamped)
    stored = (user_id, score, metadata, subscore, operation)
    same = same_time and stored == (event.user_id, event.score, event.metadata, event.subscore, event.operation)
    return RecordOutcome.DUPLICATE if same else RecordOutcome.CONFLICT


# How far scores without a time move to come after the user's last one, on boards with operations. A large batch has
# many of the same time.
LATER_US = 1_000_000


def may_follow(event: Event, last_at: int | None) -> bool:
    """Return True if an event on a board with operations has no time of its own, and others of its user may have it."""
    return event.stamped and last_at is not None and event.at <= last_at


def time_after(event: Event, latest: int | None) -> int:
    """Return the time of an event that must follow the latest one of its user between its time and LATER_US later."""
    return event.at if latest is None else max(event.at, latest + 1)


def folding_order(board: Board, statement: str) -> str:
    """Return the name of the variant of a statement that returns events in the order in which a board folds them."""
    return f"{statement}_in_order" if board.operations else statement


def outcome_of(event: Event, stored: Sequence[Any]) -> RecordOutcome:
    """Return the outcome of an event for review whose id is taken. `stored`: the columns of `event_with_act`."""
    *columns, act, undone_by = stored
    outcome = compare(event, *columns)
    waits = outcome is RecordOutcome.DUPLICATE and act == REVIEW and undone_by is None
    return RecordOutcome.IN_REVIEW if waits else outcome


def read_review(columns: Sequence[Any]) -> StoredReview:
    return StoredReview(StoredAction(*columns[:12]), *columns[12:])


# Folded standings, by user id, then by period id.
Folds = dict[str, dict[int, Standing]]


def begin_folds(users: Sequence[str], bases: Iterable[tuple[int, str, Standing]]) -> Folds:
    """Return folds that start from `bases`, the standings of events that have been pruned."""
    folds: Folds = {user_id: {} for user_id in users}
    for period_id, user_id, base in bases:
        folds[user_id][period_id] = base
    return folds


def fold_events(
    board: Board, periods: tuple[Period, ...], folds: Folds, events: Iterable[tuple[str, float, int, int, str | None]]
) -> None:
    for user_id, score, at, subscore, operation in events:
        for period in periods:
            if period.contains(at):
                own = folds[user_id]
                own[period.id] = board.fold(own.get(period.id), score, at, subscore, operation)


def refold_users(
    board: Board,
    periods: tuple[Period, ...],
    users: Sequence[str],
    rows: Iterable[Row],
    fresh: Folds,
    profiles: Iterable[Profile] = (),
    hides: Iterable[tuple[str, int, int]] = (),
) -> list[Refolded]:
    """Return users with their rows in open periods, and the standings that a new fold of their events produces.

    `hides` has the user id, the board id and how the user is hidden.
    """
    stored: dict[str, list[Row]] = {user_id: [] for user_id in users}
    for row in rows:
        stored[row.user_id].append(row)
    segments = {profile.user_id: profile.segments(board.segments) for profile in profiles}
    hidden: dict[str, dict[int, Hidden]] = {}
    for user_id, board_id, how in hides:
        hidden.setdefault(user_id, {})[board_id] = HIDDEN[how]
    return [
        Refolded(
            user_id,
            tuple(stored[user_id]),
            fresh[user_id],
            periods,
            segments.get(user_id, ()),
            hidden_on(board.id, hidden.get(user_id, {})),
        )
        for user_id in users
    ]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _metadata_text(board: Board) -> str | None:
    return None if board.metadata is None else _json(board.metadata)
