"""For those who run the server: is it alive, is it ready, and is what it shows what it stored?"""

from collections.abc import AsyncIterator

from laurels.http.bodies import HealthAnswer, NoQuery, ReadyAnswer, VerifyLine
from laurels.http.call import Answered, Call, Streamed
from laurels.service.verify import Checked


async def get_health(call: Call[NoQuery, None]) -> HealthAnswer:
    """Is the process alive?"""
    del call
    return HealthAnswer(status="ok")


async def get_ready(call: Call[NoQuery, None]) -> Answered[ReadyAnswer]:
    """Can it serve? 503 with the reason for each dependency if not"""
    dependencies = await call.laurels.dependencies()
    ready = all(state == "ok" for state in dependencies.values())
    answer = ReadyAnswer(status="ready" if ready else "not_ready", dependencies=dependencies)
    return Answered(answer, 200) if ready else Answered(answer, 503, {"Retry-After": "1"})


async def get_verify(call: Call[NoQuery, None]) -> Streamed:
    """Compare the index and the stored rows with a fresh fold of all events

    Streams JSON lines: each difference, now and then how many users were checked, and a last line with `done`.
    """
    checks = call.laurels.verify()
    # The first stretch is checked before the answer begins, so that a refusal still is a proper error.
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
