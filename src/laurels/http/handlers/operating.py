"""Operation of the server: health, readiness, metrics, jobs, the spool, verification and rebuilds."""

import hmac
from collections.abc import AsyncIterator

import msgspec

from laurels.core.addresses import limited_address
from laurels.core.instants import to_datetime
from laurels.errors import Conflict, NotFound, Unauthenticated
from laurels.http.board_parts import show_moment
from laurels.http.call import Answered, Call, Streamed, Text
from laurels.http.operating_answers import (
    HealthAnswer,
    JobAnswer,
    JobsAnswer,
    ReadyAnswer,
    RebuildLine,
    SpoolAnswer,
    SpooledEvent,
    SpoolReplayAnswer,
    VerifyLine,
)
from laurels.http.queries import NoQuery, RebuildQuery
from laurels.metrics import METRICS_TYPE, render_metrics
from laurels.service.boards.boards import Boards
from laurels.service.index.rebuild import Rebuilt
from laurels.service.index.verify import Checked
from laurels.service.write.spooler import Spooler


async def get_health(call: Call[NoQuery, None]) -> HealthAnswer:
    """Check that the process is alive."""
    del call
    return HealthAnswer(status="ok")


async def get_ready(call: Call[NoQuery, None]) -> Answered[ReadyAnswer]:
    """Check that the server can answer requests.

    The status is 503 if it can't. The response has the state of each dependency. Callers from other machines get one
    that is at most half a second old.
    """
    if limited_address(call.address) is None:
        return await _readiness(call)
    ready: Answered[ReadyAnswer] = await call.recent.readiness.get(lambda: _readiness(call))
    return ready


async def _readiness(call: Call[NoQuery, None]) -> Answered[ReadyAnswer]:
    dependencies = await call.laurels.dependencies()
    away = [name for name, state in dependencies.items() if state != "ok"]
    ledger_id = call.laurels.ledger_id
    if not away:
        return Answered(ReadyAnswer(status="ready", dependencies=dependencies, ledger_id=ledger_id), 200)
    if len(away) == 1 and await call.laurels.answers_without(away[0]):
        return Answered(ReadyAnswer(status="degraded", dependencies=dependencies, ledger_id=ledger_id), 200)
    answer = ReadyAnswer(status="not_ready", dependencies=dependencies, ledger_id=ledger_id)
    return Answered(answer, 503, {"Retry-After": "1"})


async def get_metrics(call: Call[NoQuery, None]) -> Text:
    """Return metrics for Prometheus.

    If the server has a metrics key, the call needs it. Callers from other machines get metrics that are at most a
    second old.
    """
    key = call.laurels.metrics_key
    if key is not None and not hmac.compare_digest((call.token or "").encode(), key.encode()):
        if call.token is not None:
            call.laurels.traffic.note_wrong_key(call.address)
        raise Unauthenticated("key_required", "Send the metrics key: 'Authorization: Bearer KEY'.")

    async def render() -> bytes:
        call.sight.flush()
        return render_metrics()

    is_near = limited_address(call.address) is None
    return Text(await render() if is_near else await call.recent.metrics.get(render), METRICS_TYPE)


async def get_jobs(call: Call[NoQuery, None]) -> JobsAnswer:
    """List the periodic jobs with the results of their last runs.

    Each job runs on one server at a time.
    """
    return JobsAnswer(
        jobs=[
            JobAnswer(
                job=run.name,
                running=run.owner is not None,
                runs=run.runs,
                started_at=to_datetime(run.started_at),
                finished_at=show_moment(run.finished_at),
                result=None if run.result is None else msgspec.json.decode(run.result),
                error=run.error,
            )
            for run in await call.laurels.jobs.runs()
        ]
    )


async def get_spool(call: Call[NoQuery, None]) -> SpoolAnswer:
    """Return the state of this server's spool.

    The response has the number of events that wait on disk for the ledger, and the events that could not be replayed.
    An event that can't be replayed, for example because its board is gone, is set aside with the reason, so that it
    does not block the events behind it.
    """
    spooler = _spooler(call)
    events = [
        SpooledEvent(
            uuid=_uuid_of(call.laurels.boards, each.board_id),
            user_id=each.user_id,
            score=each.score,
            timestamp=show_moment(each.at),
            event_id=each.event_id,
            code=each.code,
            reason=each.reason,
            put_aside_at=to_datetime(each.put_aside_at),
        )
        for each in await spooler.put_aside()
    ]
    return SpoolAnswer(waiting=spooler.waiting, put_aside=events)


async def post_spool_replay(call: Call[NoQuery, None]) -> SpoolReplayAnswer:
    """Retry the spooled events that were set aside.

    Each event counts once, however often it is retried. An event that fails again is set aside again.
    """
    answer = SpoolReplayAnswer(replaying=await _spooler(call).replay_put_aside())
    call.note_change(None, answer)
    return answer


def _spooler(call: Call[NoQuery, None]) -> Spooler:
    spooler = call.laurels.spooler
    if spooler is None:
        raise Conflict("spool_off", "This server has no spool: start it with --spool, or set LAURELS_SPOOL.")
    return spooler


def _uuid_of(boards: Boards, board_id: int | None) -> str | None:
    try:
        return None if board_id is None else boards.by_id(board_id).uuid
    except NotFound:
        return None


async def post_rebuild(call: Call[RebuildQuery, None]) -> Streamed:
    """Rebuild the rankings from the ledger.

    Readers see the old ranking until the new one is complete. Streams JSON lines: one per ranking with the number of
    users whose old entries were wrong, lines with the progress, and a last line with `done`.
    """
    uuid = call.query.board
    call.note_change(None, {"board": uuid})
    boards = call.laurels.boards.all() if uuid is None else [call.laurels.boards.to_read(call.caller, uuid)]
    total = await call.laurels.count_rows()
    rebuilds = call.laurels.rebuild(boards)
    first = await anext(rebuilds, None)
    return Streamed(_rebuild_lines(first, rebuilds, total))


async def _rebuild_lines(first: Rebuilt | None, rest: AsyncIterator[Rebuilt], total: int) -> AsyncIterator[RebuildLine]:
    rows = differences = 0
    rebuilt = first
    while rebuilt is not None:
        if rebuilt.done:
            rows += rebuilt.rows
            differences += rebuilt.differed or 0
            yield RebuildLine(
                board=rebuilt.board,
                period=rebuilt.period,
                differed=rebuilt.differed,
                users=list(rebuilt.users) or None,
                rebuilt_rows=rows,
                total_rows=total,
            )
        else:
            yield RebuildLine(rebuilt_rows=rows + rebuilt.rows, total_rows=total)
        rebuilt = await anext(rest, None)
    yield RebuildLine(rebuilt_rows=rows, total_rows=total, differences=differences, done=True)


async def get_verify(call: Call[NoQuery, None]) -> Streamed:
    """Compare the index and the stored rows with a new fold of all events.

    Streams JSON lines: one per difference, lines with the number of users checked so far, and a last line with `done`.
    """
    checks = call.laurels.verify()
    # Check the first users before the response starts, so that a refusal is still a proper error.
    first = await anext(checks, None)
    return Streamed(_verify_lines(first, checks, await call.laurels.count_rows()))


async def _verify_lines(first: Checked | None, rest: AsyncIterator[Checked], total: int) -> AsyncIterator[VerifyLine]:
    users = differences = 0
    checked = first
    while checked is not None:
        users += checked.users
        differences += len(checked.differences)
        for each in checked.differences:
            yield VerifyLine(
                board=each.board,
                period=each.period,
                user_id=each.user_id,
                fault=each.fault.value,
                expected=each.expected,
                found=each.found,
            )
        if checked.users:
            yield VerifyLine(checked_users=users, total_users=total)
        checked = await anext(rest, None)
    yield VerifyLine(checked_users=users, total_users=total, differences=differences, done=True)
