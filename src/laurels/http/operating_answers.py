"""Response bodies for operators: health, jobs, the spool, verification and rebuilds."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from laurels.http.fields import Answer, Instant


class HealthAnswer(Answer):
    status: str


class ReadyAnswer(Answer):
    status: Annotated[
        Literal["ready", "degraded", "not_ready"],
        Meta(description="degraded: one dependency is unreachable, and the server answers what it can without it."),
    ]
    dependencies: Annotated[dict[str, str], Meta(description="`ok` or the reason why not, for each dependency.")]
    ledger_id: Annotated[
        str | None, Meta(description="The same on all servers that share a ledger. null: not open yet.")
    ]


class JobAnswer(Answer):
    job: str
    running: bool
    runs: int
    started_at: Instant
    finished_at: Instant | None
    result: Annotated[dict[str, Any] | None, Meta(description="The result of the last run.")]
    error: Annotated[str | None, Meta(description="The reason why the last run failed.")]


class JobsAnswer(Answer):
    jobs: list[JobAnswer]


class AuditedCall(Answer):
    """An administrative call."""

    entry_id: str
    at: Instant
    route: Annotated[str, Meta(description="The method and the path of the call, as in the list of all calls.")]
    pod_id: str | None
    uuid: str | None = field(name="UUID")
    user_id: str | None
    path: Annotated[dict[str, str], Meta(description="The other names in the path, such as `keyId`.")]
    key_id: str
    role: str
    address: Annotated[str | None, Meta(description="The address of the client. null: a local socket.")]
    request_id: str
    before: Annotated[dict[str, Any] | None, Meta(description="The changed fields before the call.")]
    after: Annotated[dict[str, Any] | None, Meta(description="The changed fields after the call, or its result.")]
    status: Annotated[int | None, Meta(description="null: the server stopped during the call.")]
    error: str | None


class AuditAnswer(Answer):
    entries: list[AuditedCall]
    next_cursor: str | None


class SpooledEvent(Answer):
    """An event that could not be replayed, and the reason. Fields that are no longer known are null."""

    uuid: str | None = field(name="UUID")
    user_id: str | None
    score: float | None
    timestamp: Instant | None
    event_id: str | None
    code: str
    reason: str
    put_aside_at: Instant


class SpoolAnswer(Answer):
    waiting: Annotated[int, Meta(description="The number of events that wait on this server's disk for the ledger.")]
    put_aside: Annotated[
        list[SpooledEvent], Meta(description="Events that were set aside because they could not be replayed.")
    ]


class SpoolReplayAnswer(Answer):
    replaying: Annotated[int, Meta(description="The number of events that were set aside and are now retried.")]


class VerifyLine(Answer, omit_defaults=True):
    """One line of the stream: a difference or the progress. The last line has `done`."""

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
    """One line of the stream: a rebuilt ranking or the progress. The last line has `done`."""

    board: str | None = None
    period: str | None = None
    differed: Annotated[
        int | None,
        Meta(description="The number of users whose old entries were wrong. Absent: there was no old ranking."),
    ] = None
    users: Annotated[list[str] | None, Meta(description="The first of these users.")] = None
    rebuilt_rows: int | None = None
    total_rows: int | None = None
    differences: int | None = None
    done: bool | None = None
