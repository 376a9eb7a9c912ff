"""What those get who run the server: health, jobs, the spool, checks and rebuilds."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from laurels.http.fields import Answer, Instant


class HealthAnswer(Answer):
    status: str


class ReadyAnswer(Answer):
    status: Annotated[
        Literal["ready", "degraded", "not_ready"],
        Meta(description="degraded: ledger or index is away, and the other one answers what it can."),
    ]
    dependencies: Annotated[dict[str, str], Meta(description="'ok', or why not, for each.")]
    ledger_id: Annotated[str | None, Meta(description="The same on all servers of one ledger. null: not open yet.")]


class JobAnswer(Answer):
    job: str
    running: bool
    runs: int
    started_at: Instant
    finished_at: Instant | None
    result: Annotated[dict[str, Any] | None, Meta(description="What the last run did.")]
    error: Annotated[str | None, Meta(description="Why the last run failed.")]


class JobsAnswer(Answer):
    jobs: list[JobAnswer]


class SpooledEvent(Answer):
    """An event that could not be replayed, and why. What is null can't be read any more."""

    uuid: str | None = field(name="UUID")
    user_id: str | None
    score: float | None
    timestamp: Instant | None
    event_id: str | None
    code: str
    reason: str
    put_aside_at: Instant


class SpoolAnswer(Answer):
    waiting: Annotated[int, Meta(description="Events that wait on this server's disk for the ledger.")]
    put_aside: Annotated[list[SpooledEvent], Meta(description="Events that could not be replayed.")]


class SpoolReplayAnswer(Answer):
    replaying: Annotated[int, Meta(description="Events that were put aside, and are tried again now.")]


class VerifyLine(Answer, omit_defaults=True):
    """One line of the stream: a difference, or how far it is; the last line has `done`."""

    board: str | None = None
    period: str | None = None
    user_id: str | None = None
    fault: str | None = None
    expected: str | None = None
    found: str | None = None
    checked_users: int | None = None
    total_users: int | None = None
    differences: int | None = None
    done: bool | None = None


class RebuildLine(Answer, omit_defaults=True):
    """One line of the stream: a ranking that was built anew, or how far it is; the last line has `done`."""

    board: str | None = None
    period: str | None = None
    differed: Annotated[
        int | None, Meta(description="Users that the ranking before had wrong. Absent: none was there.")
    ] = None
    users: Annotated[list[str] | None, Meta(description="The first of those users.")] = None
    rebuilt_rows: int | None = None
    total_rows: int | None = None
    differences: int | None = None
    done: bool | None = None
