"""What every SQL ledger does in Python: boards as columns, events that came before, a fresh fold."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.limits import CIRCLES
from laurels.core.order import Order, Ties
from laurels.core.people import Hidden, Kind, Profile, ProfileChange, hidden_on, segments_of
from laurels.core.rewards import Reward
from laurels.core.schemas import Schema, SchemaState, SchemaTerms
from laurels.core.scores import Rule, Standing, fold
from laurels.core.windows import Period, PeriodState, Window
from laurels.errors import Busy, Conflict, NotFound, Stale
from laurels.ports import Cursors, Event, Recorded, Refolded, Row

# The fact that says where the publishing of events has come to.
PUBLISHED = "published_events"
# What there is to take over from another ledger, in an order in which each finds what it refers to. Jobs are not: what
# a server does now and then begins anew.
TABLES = (
    "pods", "keys", "boards", "periods", "acts", "events", "scores", "bases", "finals", "grants", "webhooks", "outbox",
    "profiles", "hides", "erased", "schemas", "replays", "counters", "facts",
)  # fmt: skip


class Stretch(NamedTuple):
    """Some rows of a table, as they are stored."""

    table: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def insert_values(board: Board) -> tuple[Any, ...]:
    """A new board, in the order of the statement `insert_board`."""
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
    )


def spell_cursors(cursors: Cursors) -> str:
    """As they stand in the fact: the one for all pods, and, only if there are any, those of single ones."""
    return _json(cursors) if cursors.behind else cursors.every


def read_cursors(text: str) -> Cursors:
    return msgspec.json.decode(text, type=Cursors) if text.startswith("{") else Cursors(text)


def schema_values(schema: Schema) -> tuple[Any, ...]:
    """A schema, in the order of the statement `put_schema`."""
    terms = msgspec.json.encode(schema.terms).decode()
    return (schema.pod_id, schema.version, schema.state.value, terms, schema.created_at, schema.updated_at)


def read_schema(columns: Sequence[Any]) -> Schema:
    pod_id, version, state, terms, created_at, updated_at = columns
    decoded = msgspec.json.decode(terms, type=SchemaTerms)
    return Schema(pod_id, version, SchemaState(state), decoded, created_at, updated_at)


def update_values(board: Board) -> tuple[Any, ...]:
    """A changed board, in the order of the statement `update_board`."""
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
        board.id,
        board.revision,
    )


def read_board(columns: tuple[object, ...], periods: tuple[Period, ...]) -> Board:
    """`columns` are in the order of the fields of `Board`, without the periods."""
    fields = dict(zip(Board.__struct_fields__, (*columns, periods), strict=True))
    fields["rule"] = Rule(str(fields["rule"]))
    fields["order"] = Order(str(fields["order"]))
    fields["ties"] = Ties(str(fields["ties"]))
    fields["public"] = bool(fields["public"])
    fields["windows"] = msgspec.json.decode(str(fields["windows"]), type=tuple[Window, ...])
    fields["segments"] = msgspec.json.decode(str(fields["segments"]), type=tuple[str, ...])
    fields["rewards"] = msgspec.json.decode(str(fields["rewards"]), type=tuple[Reward, ...])
    if fields["metadata"] is not None:
        fields["metadata"] = msgspec.json.decode(str(fields["metadata"]))
    return Board(**fields)  # type: ignore[arg-type]


def read_period(columns: Iterable[Any]) -> Period:
    """`columns` are in the order of the fields of `Period`."""
    period_id, window, name, start, end, state, terms, total_users, frozen_at, replaces = columns
    return Period(period_id, window, name, start, end, PeriodState(state), terms, total_users, frozen_at, replaces)


def changed_periods(periods: Iterable[Period]) -> list[tuple[int | None, int | None, str, str | None, int]]:
    """Changed periods, in the order of the statement `update_period`."""
    return [(period.start, period.end, period.state.value, period.terms, period.id) for period in periods]


def with_periods(board: Board, added: Iterable[Period]) -> Board:
    """In the order in which they begin."""
    periods = sorted((*board.periods, *added), key=lambda period: (period.start or 0, period.id))
    return replace(board, periods=tuple(periods))


def events_ahead() -> Conflict:
    return Conflict("period_has_scores", "The next period already has scores: it is too late to extend this one.")


def events_after_end() -> Conflict:
    return Conflict(
        "end_before_scores",
        "The board has scores of a later time than that. Choose a later endTime, or set the status to ENDED to end it "
        "after the last one.",
        field="endTime",
    )


def nothing_to_remove(user_id: str) -> NotFound:
    return NotFound(
        "user_not_found",
        f"User {user_id!r} has no score in a period of this board that goes on. Final ranks stay as they are.",
        field="userId",
    )


# While its final ranks are being written.
WRITABLE = ("closed", "refreezing")


def refreeze_running() -> Busy:
    return Busy("refreeze_running", "Final ranks of this board are being set right. Try again when that is done.")


def act_running() -> Busy:
    return Busy("act_running", "Events of this board are being voided or restored. Try again when that is done.")


def events_pruned(period: Period) -> Conflict:
    return Conflict("events_pruned", f"Not all events of {period.name!r} are kept any more.")


def not_refreezable(period: Period) -> Conflict:
    return Conflict(
        "period_not_final",
        f"The period {period.name!r} has no final ranks that could be set right: another one stands in its place, or "
        "nobody knows which events had come when it was closed.",
    )


def read_successor(found: Any) -> tuple[int, int, str] | None:
    """Raises if there is a successor of the period, and none of the grant."""
    if found is None:
        return None
    if found[0] is None:
        raise Conflict(
            "reward_withdrawn",
            "Final ranks were set right since, and this reward is not earned any more.",
            field="rewardId",
        )
    period_id, place, reward = found
    return period_id, place, reward


def edition_name(name: str, number: int) -> str:
    """What a period is called that another one replaced."""
    return f"{name}@{number}"


def not_closed() -> Stale:
    return Stale("changed_meanwhile", "The period is not closed, or not any more.")


def need_final(total: int | None) -> int:
    """The total of a frozen period. What was read of it before this is whole: its ranks go only after it is pruned."""
    if total is None:
        raise Stale("changed_meanwhile", "The final ranks of this period were pruned a moment ago.")
    return total


HIDDEN = tuple(Hidden)


def digest_of(pod_id: str, user_id: str) -> bytes:
    """What is kept of the name of a user who was erased."""
    return hashlib.sha256(f"{pod_id}/{user_id}".encode()).digest()


def spell_segments(segments: Sequence[str]) -> str | None:
    return " ".join(segments) or None


def spell_circles(circles: Iterable[str]) -> str:
    """As they stand among the segments of a row."""
    return " ".join(segments_of([Kind.CIRCLE], None, circles))


def read_profile(columns: Iterable[Any]) -> Profile:
    user_id, display_name, avatar_url, region, region_at, circles = columns
    named = tuple(circle.partition(":")[2] for circle in circles.split())
    return Profile(user_id, display_name, avatar_url, region, region_at, named)


def changed_profile(change: ProfileChange, profile: Profile, at: int) -> Profile:
    changed = change.made_to(profile, at)
    if len(changed.circles) > CIRCLES and len(changed.circles) > len(profile.circles):
        raise Conflict("too_many_circles", f"A user is in at most {CIRCLES} circles.", field="circles")
    return changed


def spelled_user(user_id: str) -> str:
    """As it stands in messages."""
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


def compare(event: Event, user_id: str, score: float, at: int, stamped: bool, metadata: str | None) -> Recorded:
    """What an event is whose id was there before, with this payload."""
    # Where the server's clock gave the time, a repetition has another; an export that comes back has the same.
    same_time = at == event.at if not event.stamped else bool(stamped)
    same = same_time and (user_id, score, metadata) == (event.user_id, event.score, event.metadata)
    return Recorded.DUPLICATE if same else Recorded.CONFLICT


# What users' events add up to: by user, then by period.
Folds = dict[str, dict[int, Standing]]


def begin_folds(users: Sequence[str], bases: Iterable[tuple[int, str, Standing]]) -> Folds:
    """`bases`: what those events added up to that are not kept any more."""
    folds: Folds = {user_id: {} for user_id in users}
    for period_id, user_id, base in bases:
        folds[user_id][period_id] = base
    return folds


def fold_events(
    board: Board, periods: tuple[Period, ...], folds: Folds, events: Iterable[tuple[str, float, int]]
) -> None:
    for user_id, score, at in events:
        for period in periods:
            if period.contains(at):
                own = folds[user_id]
                own[period.id] = fold(board.rule, board.order, own.get(period.id), score, at)


def refold_users(
    board: Board,
    periods: tuple[Period, ...],
    users: Sequence[str],
    rows: Iterable[Row],
    fresh: Folds,
    profiles: Iterable[Profile] = (),
    hides: Iterable[tuple[str, int, int]] = (),
) -> list[Refolded]:
    """The users with their rows in open periods, and what their events say that these should be.

    `hides`: users, where, and how.
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
