"""Periods for readers and operators: look-up, early close, extension, refreeze, results and rewards of users."""

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from laurels.core.board import Board, Status
from laurels.core.ids import new_event_id
from laurels.core.instants import to_datetime
from laurels.core.limits import DAY_US
from laurels.core.periods import next_period, with_later_end, with_period
from laurels.core.windows import Period, PeriodState, are_of_one, next_span, rest_of
from laurels.errors import Conflict, Invalid, NotFound
from laurels.ports import BoardUpdate, Clock, Grant, Ledger, ModerationAction, Result, StoredAction
from laurels.service.boards.boards import NOTICE_US, Boards
from laurels.service.boards.caller import Caller
from laurels.service.seasons.freezer import Freezer, parse_grant_id

CURRENT = "current"
PREVIOUS = "previous"
# Final periods to cache. They change only when they are pruned.
KEPT = 1000
ATTEMPTS = 5


class Granted(Struct, frozen=True):
    """A grant with its board and period."""

    board: Board
    period: Period
    grant: Grant


class Seasons:
    def __init__(self, ledger: Ledger, boards: Boards, freezer: Freezer, clock: Clock) -> None:
        self._ledger = ledger
        self._freezer = freezer
        self._boards = boards
        self._clock = clock
        # By history, board, board revision and name, because a refreeze gives a name to another period.
        self._past: dict[tuple[str, int, int, str], Period] = {}

    # Look-up

    async def period(self, board: Board, window: str | None, name: str | None) -> Period:
        """Return the period with a name, or the 'current' or 'previous' one.

        None means current. If `window` is None, current and previous are those of the board's first window. Raises
        NotFound if the period does not exist, and Invalid if the board does not have the window.
        """
        _need_window(board, window)
        if name is None or name == CURRENT:
            return await self._current(board, window or board.windows[0].name)
        if name == PREVIOUS:
            return await self._previous(board, window or board.windows[0].name)
        period = board.period_named(name) or await self._find(board, name)
        if period is None or period.state is PeriodState.REFREEZING or (window is not None and period.window != window):
            of_window = "" if window is None else f" of the window {window!r}"
            raise NotFound("period_not_found", f"The board has no period {name!r}{of_window}.", field="period")
        return period

    def held_period(self, board: Board, window: str | None, now: int) -> tuple[Period, float, float] | None:
        """Return the current period, and the first and the last instant (exclusive) at which it is current.

        Returns None if the board does not hold it: it is final or does not exist, and only the ledger knows. Raises
        Invalid if the board does not have the window.
        """
        _need_window(board, window)
        ends = math.inf if board.ended_at is None else board.ended_at
        # An ended board shows the period in which it ended, and one that has not started that of its start.
        moment = board.opened_at(now) if now < ends else int(ends) - 1
        period = board.current_period(window or board.windows[0].name, moment)
        if period is None:
            return None
        if now >= ends:
            return period, ends, math.inf
        since = 0 if moment > now else period.start or 0
        return period, since, ends if period.end is None else min(ends, period.end)

    async def page(self, board: Board, window: str | None, before: tuple[int, int] | None, limit: int) -> list[Period]:
        """Return a page of a board's periods, latest start first.

        `before`: the start and the id of the last period on the previous page.
        """
        _need_window(board, window)
        return await self._ledger.periods.periods(board.id, window, before, limit)

    async def currents(self, boards: Sequence[Board]) -> list[Period | None]:
        """Return the current period of each board's first window, with at most one query."""
        return await self._shown([(board, board.windows[0].name) for board in boards])

    async def _shown(self, asked: Sequence[tuple[Board, str]]) -> list[Period | None]:
        now = self._clock.now_us()
        # An ended board shows the period in which it ended, and one that has not started that of its start.
        moments = [
            board.opened_at(now) if board.ended_at is None or now < board.ended_at else board.ended_at - 1
            for board, _ in asked
        ]
        held = [board.current_period(window, at) for (board, window), at in zip(asked, moments, strict=True)]
        past = [
            (board.id, window, at)
            for (board, window), at, period in zip(asked, moments, held, strict=True)
            if period is None
        ]
        found = iter(await self._ledger.periods.periods_at(past) if past else ())
        return [next(found) if period is None else period for period in held]

    async def _current(self, board: Board, window: str) -> Period:
        (period,) = await self._shown([(board, window)])
        if period is None:
            raise NotFound("period_not_found", f"The window {window!r} has not begun.", field="period")
        return period

    async def _previous(self, board: Board, window: str) -> Period:
        current = await self._current(board, window)
        found = None
        if current.start is not None:
            found = board.current_period(window, current.start - 1)
            if found is None:
                (found,) = await self._ledger.periods.periods_at([(board.id, window, current.start - 1)])
        if found is None:
            raise NotFound("period_not_found", f"The window {window!r} has no period before this one.", field="period")
        return found

    async def _find(self, board: Board, name: str) -> Period | None:
        key = (self._boards.history, board.id, board.revision, name)
        period = self._past.get(key)
        if period is not None and not self._may_be_pruned(board, period):
            return period
        period = await self._ledger.periods.find_period(board.id, name)
        if period is not None and period.is_final:
            if len(self._past) >= KEPT:
                self._past.clear()
            self._past[key] = period
        return period

    def forget(self, board: Board, period: Period) -> None:
        """Remove a past period from the cache, so that it is read again."""
        self._past.pop((self._boards.history, board.id, board.revision, period.name), None)

    def _may_be_pruned(self, board: Board, period: Period) -> bool:
        kept = board.keep_periods_days
        return kept is not None and self._clock.now_us() > (period.frozen_at or 0) + kept * DAY_US

    # Manual changes

    async def close_now(self, board: Board, name: str) -> Period:
        """End a period as soon as all servers can know about it.

        The rest, up to the next reset, becomes a separate period. Raises Conflict if the period is not in progress, or
        if scores with timestamps ahead of the clock keep arriving.
        """
        name = (await self.period(board, None, name)).name
        for _ in range(ATTEMPTS):
            end = await self._boards.next_free_instant(board)

            def close(fresh: Board, end: int = end) -> BoardUpdate:
                period = self._going_on(fresh, name)
                if period.end is not None and end >= period.end:
                    return BoardUpdate(fresh)
                closed = with_period(fresh, replace(period, end=end))
                following = next_period(fresh, period)
                if following is not None and are_of_one(period, following):
                    # The period was closed and extended before: its rest exists and now starts earlier.
                    return BoardUpdate(with_period(closed, replace(following, start=end)), free_from=end)
                return BoardUpdate(closed, spans=(rest_of(period, end),), free_from=end)

            try:
                stored = await self._boards.update(board, close)
                await self._boards.load_new(board, stored)
                return self._going_on(stored, name)
            except Conflict as error:
                # An event further ahead of the clock arrived, or the update took too long: retry with a later end.
                if error.code != "period_has_scores":
                    raise
        raise Conflict("changed_meanwhile", "Scores with timestamps ahead of the clock keep arriving. Try again.")

    async def extend(self, board: Board, name: str, end: int) -> Period:
        """Move the end of a period to a later time, where the next period then starts.

        Raises Invalid if `end` is not between the current end and the end of the next period, and Conflict if the
        period is not in progress or the next one is about to start.
        """
        name = (await self.period(board, None, name)).name

        def extend(fresh: Board) -> BoardUpdate:
            period = self._going_on(fresh, name)
            window = fresh.window_named(period.window)
            assert period.end is not None, "_going_on checks it"
            assert window is not None, "windows are never removed"
            following = next_period(fresh, period) or next_span(window, period)
            last = fresh.ended_at if following is None else following.end
            if following is not None and following.start is not None and following.start > period.end:
                # The window is closed in between.
                last = following.start
            if end <= period.end or (last is not None and end >= last):
                until = "" if last is None else f" < {to_datetime(last).isoformat()}"
                raise Invalid(
                    "out_of_range",
                    "endTime must be later than the current end and before the end of the next period, or before its "
                    "start if the window is closed in between.",
                    field="endTime",
                    rule=f"{to_datetime(period.end).isoformat()} < endTime{until}",
                )
            if self._clock.now_us() + NOTICE_US >= period.end:
                raise Conflict(
                    "period_has_scores", "The next period starts in a moment: it is too late to extend this one."
                )
            return BoardUpdate(with_later_end(fresh, period, end), free_from=period.end)

        return self._going_on(await self._boards.update(board, extend), name)

    async def refreeze(
        self, caller: Caller, board: Board, name: str, reason: str | None, token: str | None
    ) -> StoredAction:
        """Start to recompute the final ranks of a period from the events that count now.

        Returns once the request is stored; the periods job does the work. Raises NotFound if the final ranks were
        pruned, and Conflict if the period is not frozen.
        """
        period = await self.period(board, None, name)
        if period.is_pruned:
            raise NotFound("period_pruned", f"The final ranks of {period.name!r} are no longer kept.", field="period")
        if period.state is not PeriodState.FROZEN:
            raise Conflict(
                "period_not_final", f"The period {period.name!r} is not frozen, so it has no final ranks to correct."
            )
        detail = msgspec.json.encode({"period": period.name}).decode()
        now = self._clock.now_us()
        key = f"refreeze/{token or new_event_id(now)}/{period.name}"
        act = ModerationAction(key, "refreeze", caller.key_id, now, reason, detail)
        return await self._freezer.begin_refreeze(board, period, act)

    def _going_on(self, board: Board, name: str) -> Period:
        now = self._clock.now_us()
        period = board.period_named(name)
        if period is None:
            raise Conflict("period_not_open", f"The period {name!r} is over.")
        if period.end is None:
            raise Conflict(
                "period_not_open",
                "The window 'all' has no end. End the board instead, or add a window with a cron schedule for seasons.",
            )
        if (
            not period.contains(now)
            or period.state is not PeriodState.OPEN
            or board.status_at(now) is not Status.ACTIVE
        ):
            raise Conflict("period_not_open", f"The period {name!r} is not in progress.")
        return period

    # Results and rewards

    async def results(
        self, boards: Iterable[Board], user_id: str, before: tuple[int, int] | None, limit: int
    ) -> list[tuple[Board, Result]]:
        by_id = {board.id: board for board in boards}
        found = await self._ledger.periods.results(list(by_id), user_id, before, limit)
        return [(by_id[result.board_id], result) for result in found]

    async def rewards_of_user(
        self, boards: Iterable[Board], user_id: str, before: tuple[int, int, str] | None, limit: int
    ) -> list[Granted]:
        by_id = {board.id: board for board in boards}
        found = await self._ledger.periods.grants_of_user(list(by_id), user_id, before, limit)
        return [Granted(by_id[board_id], period, grant) for board_id, period, grant in found]

    async def rewards_of_period(
        self, board: Board, period: Period, after: tuple[int, str], limit: int
    ) -> list[Granted]:
        """Return a page of the grants of a period, or nothing until the period is final."""
        if not period.is_final:
            return []
        found = await self._ledger.periods.grants_of_period(period.id, after, limit)
        return [Granted(board, period, grant) for grant in found]

    async def claim(self, caller: Caller, reward_id: str) -> tuple[Granted, bool]:
        """Mark a reward as claimed, and return it with True if this was the first claim.

        Idempotent: the first claim stays. An id from before a refreeze still works. Raises NotFound if the reward does
        not exist or belongs to another pod, and Conflict if a refreeze withdrew it before it was claimed.
        """
        key = parse_grant_id(reward_id)
        found = None if key is None else await self._ledger.periods.find_grant(*key)
        board = None if found is None else self._boards.by_id(found[0])
        if key is None or found is None or board is None or not (caller.is_admin or caller.pod_id == board.pod_id):
            raise NotFound("reward_not_found", f"There is no reward {reward_id!r}.", field="rewardId")
        caller.require_writer()
        if found[1].is_replaced:
            # The period was refrozen since: the same reward has a new id.
            try:
                key = await self._ledger.periods.successor(*key) or key
            except Conflict:
                # Withdrawn, but it may have been claimed before that, under this id or a later one.
                claimed = found if found[2].claimed_at else await self._ledger.periods.claimed_edition(*key)
                if claimed is None:
                    raise
                return Granted(board, claimed[1], claimed[2]), False
        first = await self._ledger.periods.claim(*key, caller.key_id, self._clock.now_us())
        stored = await self._ledger.periods.find_grant(*key)
        if stored is None or stored[2].claimed_at is None:
            raise Conflict("changed_meanwhile", "The final ranks were corrected at the same time. Try again.")
        return Granted(board, stored[1], stored[2]), first


def _need_window(board: Board, window: str | None) -> None:
    if window is not None and board.window_named(window) is None:
        raise Invalid(
            "window_not_available",
            f"Unknown window. This board has the windows {', '.join(board.window_names)}.",
            field="window",
            rule=f"one of {', '.join(board.window_names)}",
        )
