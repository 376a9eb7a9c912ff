"""All errors that Laurels raises on purpose, and how each one is reported.

LaurelsError
├── Malformed          the request can't be parsed
├── Invalid            a value breaks a rule
├── TooLarge           the request exceeds a size limit
├── WrongMediaType     the body is not declared as JSON
├── Unauthenticated    a key is required, or the key is unknown
├── Forbidden          the role of the key does not allow the request
├── NotFound           the resource does not exist, or the caller may not see it
├── WrongMethod        the endpoint does not support the method
├── UpgradeRequired    the endpoint accepts WebSockets only
├── Conflict           the request conflicts with stored data
│   └── Busy           the conflict is temporary: retry later
├── TooMany            the caller exceeds its share
│   └── OverQuota      a quota of the pod is used up: a repetition does not help soon
├── Slow               the request did not arrive in time
├── Unavailable        Laurels can't do it now: retry later
│   └── Stale          this server's copy of a board or period is outdated: read it again
└── InternalError      a bug in Laurels

A `code` is stable and listed in CODES. Messages may change at any time.
"""

from collections.abc import Sequence
from typing import NamedTuple


class LaurelsError(Exception):
    """The base class of all errors. `field` is the path of the invalid value, `rule` the rule that it breaks."""

    retryable = False

    def __init__(self, code: str, message: str, *, field: str | None = None, rule: str | None = None) -> None:
        assert code in CODES, f"error code {code!r} is not listed in CODES"
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.rule = rule


class Malformed(LaurelsError):
    pass


class Invalid(LaurelsError):
    pass


class TooLarge(LaurelsError):
    pass


class WrongMediaType(LaurelsError):
    pass


class Unauthenticated(LaurelsError):
    pass


class Forbidden(LaurelsError):
    pass


class NotFound(LaurelsError):
    pass


class WrongMethod(LaurelsError):
    allowed: Sequence[str] = ()


class UpgradeRequired(LaurelsError):
    pass


class Conflict(LaurelsError):
    pass


class Busy(Conflict):
    retryable = True


class TooMany(LaurelsError):
    """The caller exceeds its share; if `policy` is set, a limit of `quota` calls per `window_s` seconds."""

    retryable = True
    retry_after_s = 1
    policy: str | None = None
    quota = 0
    window_s = 0


class OverQuota(TooMany):
    retryable = False


class Slow(LaurelsError):
    retryable = True


class Unavailable(LaurelsError):
    """Laurels can't do it now. If `outcome_unknown` is True, a write may have been done."""

    retryable = True
    retry_after_s = 1
    outcome_unknown = False


class Stale(Unavailable):
    pass


class InternalError(LaurelsError):
    pass


class ErrorMapping(NamedTuple):
    """The HTTP status, the title and the CLI exit code of an error."""

    http_status: int
    title: str
    exit_code: int


ERROR_MAPPINGS: dict[type[LaurelsError], ErrorMapping] = {
    Malformed: ErrorMapping(400, "The request can't be parsed", 2),
    Invalid: ErrorMapping(422, "A value breaks a rule", 2),
    TooLarge: ErrorMapping(413, "The request is too large", 2),
    WrongMediaType: ErrorMapping(415, "The body must be JSON", 2),
    Unauthenticated: ErrorMapping(401, "A valid key is required", 4),
    Forbidden: ErrorMapping(403, "The key does not allow this", 4),
    NotFound: ErrorMapping(404, "Not found", 3),
    WrongMethod: ErrorMapping(405, "Method not allowed", 2),
    UpgradeRequired: ErrorMapping(426, "WebSocket required", 2),
    Conflict: ErrorMapping(409, "The request conflicts with stored data", 3),
    Busy: ErrorMapping(409, "The request conflicts with stored data", 3),
    TooMany: ErrorMapping(429, "Too many requests", 5),
    OverQuota: ErrorMapping(429, "A quota is used up", 5),
    Slow: ErrorMapping(408, "The request did not arrive in time", 5),
    Unavailable: ErrorMapping(503, "Temporarily unavailable", 5),
    Stale: ErrorMapping(503, "Temporarily unavailable", 5),
    InternalError: ErrorMapping(500, "Internal error", 1),
}

CODES: dict[str, str] = {
    # The request as a whole
    "invalid_json": "the body is not valid JSON or not UTF-8",
    "duplicate_name": "an object in the body has two members with the same name",
    "not_an_object": "the body is JSON but not an object",
    "too_deep": "the body is nested deeper than allowed",
    "body_too_large": "the body exceeds the size limit of this endpoint",
    "body_timeout": "the body did not arrive in time",
    "media_type_not_json": "the Content-Type is not application/json",
    "invalid_path": "a part of the URL is not valid UTF-8",
    "method_not_allowed": "the endpoint does not support this method",
    "no_such_address": "there is no endpoint at this URL",
    "upgrade_required": "the endpoint accepts WebSockets only; `stream` sends the same data over plain HTTP",
    # A value
    "missing_field": "a required field is missing",
    "unknown_field": "the request has a field that this endpoint does not know",
    "wrong_type": "a value has the wrong JSON type, for example a string instead of a number",
    "out_of_range": "a number is below the minimum or above the maximum",
    "wrong_length": "a text or list is shorter or longer than allowed",
    "wrong_format": "a text has characters or a form that is not allowed",
    "not_a_choice": "a value is not one of the allowed values",
    "invalid_timestamp": "a timestamp is not RFC 3339 with a time zone",
    "timestamp_out_of_range": "a timestamp is before 1970, too far in the future, or older than the kept events",
    "not_finite": "a number is NaN, infinite or too large for a double",
    "not_exact": "an integer can't be represented exactly as a double",
    "metadata_too_large": "the metadata is larger or nested deeper than allowed",
    "invalid_cursor": "the cursor was not returned by this endpoint",
    "window_not_available": "the board does not have this window",
    "segment_not_available": "the board does not have this segment",
    "invalid_window": "a window's name, cron expression or time zone is invalid",
    "invalid_reward": "a reward is invalid, for example because it does not select users in exactly one way",
    "period_not_found": "the board has no such period",
    "period_pruned": "the period's final ranks were removed, because the board's retention time is over",
    "bounds_reversed": "endTime is not after startTime, or maxScore is below minScore",
    "duplicate_user": "a user is listed twice",
    "duplicate_board": "a board is listed twice",
    "nothing_chosen": "the request does not select events, or users, in exactly one way",
    "immutable_field": "the field can't change after the board is created",
    # Events from Kafka
    "invalid_schema": "a schema's paths are invalid, for example because one path lies within another",
    "schema_not_found": "the pod has no such schema, or no schema in use that can read the event",
    "schema_mismatch": "an event lacks a value that its schema requires",
    "invalid_score": "an event's score is not a number of the schema's type that a double can hold",
    "record_too_large": "a Kafka record exceeds the size limit",
    "invalid_headers": "a Kafka record has a header whose name is not valid UTF-8",
    "wrong_pod": "an event arrived on the topic of a pod that does not own its board",
    "dead_letter_not_found": "the pod has no such dead letter",
    "kafka_off": "the server was started without Kafka",
    # Keys and roles
    "key_required": "the request needs a key (reads of public boards need none)",
    "key_unknown": "the key is unknown or revoked",
    "role_forbidden": "the role of the key does not allow this request",
    "scope_forbidden": "the key lacks the scope that this request needs",
    "player_token_required": "a client key can't read the data of one player: use a player token or a server key",
    "token_invalid": "the token is malformed, forged or revoked",
    "token_expired": "the key or the token has expired",
    "players_may_not_write": "the board does not accept scores from players themselves",
    "origin_forbidden": "the pod does not allow calls from this web origin",
    # Stored data
    "board_not_found": "the board does not exist, or the key may not see it",
    "pod_not_found": "the pod does not exist, or the key may not see it",
    "key_not_found": "the pod has no such key",
    "user_not_found": "the user has no score in this ranking, or no profile in this pod",
    "user_not_ranked": "the user has a score but is outside the board's capacity",
    "board_exists": "the UUID is taken",
    "pod_exists": "the podId is taken",
    "key_exists": "this Idempotency-Key already created a key, whose secret was shown then",
    "too_many_schemas": "the pod has the maximum number of schemas",
    "schema_in_use": "the schema is in use: retire it before you delete it",
    "too_many_boards": "the pod has the maximum number of boards",
    "too_many_windows": "the boards of the pod have the maximum number of windows with resets",
    "too_many_parts": "the split boards of the pod have the maximum number of parts",
    "resets_too_often": "a window resets more often than the pod's quota allows",
    "quota_exceeded": "the pod has used up its quota of scores per day or of users",
    "event_conflict": "the eventId was used before with a different payload; the first event stays",
    "board_not_started": "the board does not accept scores yet",
    "board_ended": "the board no longer accepts scores",
    "board_archived": "the board is archived: it can be read but not changed",
    "status_backwards": "a board's status can only move forward",
    "period_closed": "no period of the board accepts scores of that time any longer",
    "period_not_open": "the period is not in progress, so it can't be closed or extended by hand",
    "end_before_scores": "the board has scores with a timestamp at or after its new end",
    "period_has_scores": "the next period has scores or is about to begin, so it is too late to extend this one",
    "reward_withdrawn": "final ranks were corrected, and the user no longer earns the reward",
    "reward_not_found": "the reward does not exist, or the key may not see it",
    "webhook_not_found": "the pod has no webhook",
    "act_not_found": "the act does not exist, or the key may not see it",
    "act_conflict": "the Idempotency-Key was used before for a different act",
    "act_final": "the act can't be undone",
    "act_running": "an act on events of this board is still in progress",
    "refreeze_running": "final ranks of this board are being corrected",
    "reshard_running": "the number of shards of this board is being changed",
    "freeze_running": "final ranks of this pod are being written, or an act is in progress",
    "period_not_final": "the period has no final ranks that can be corrected",
    "subscore_not_available": "the board has no subscores",
    "operation_not_allowed": "the board does not allow this operation on single scores",
    "review_not_found": "the board has no such review",
    "review_decided": "somebody has decided about this score already",
    "needs_review": "a board would review this score first",
    "invalid_review": "a review rule is invalid",
    "template_not_found": "the pod has no such template",
    "too_many_templates": "the pod has the maximum number of templates",
    "attempts_used": "the user has used all attempts of the period",
    "window_closed": "all windows of the board are closed at that time",
    "not_confirmed": "the confirmation is missing, or is not the UUID of the board",
    "events_pruned": "some of the events that this request needs have been removed",
    "user_erased": "the user was erased, and the score is from before the erasure",
    "too_many_circles": "the user would be in more circles than allowed",
    "outside_board_time": "the timestamp is before the board's startTime, or not before its endTime",
    "score_out_of_bounds": "the score is below the board's minScore or above its maxScore",
    "changed_meanwhile": "the data was changed by someone else at the same time",
    # Temporary problems
    "too_many_pending": "the pod has too many writes waiting",
    "too_many_scores": "the player submits more scores per minute than the board accepts",
    "too_many_calls": "the address, the key, the player or the pod makes more calls per second than allowed",
    "too_many_wrong_keys": "too many calls with wrong keys came from this address",
    "too_many_subscriptions": "the key or the server has the maximum number of live subscriptions",
    "overloaded": "the server has too many requests waiting",
    "starting": "the server is starting: it is opening the ledger or loading the index",
    "catching_up": "the ranking is being completed from the ledger",
    "verify_running": "a verification or a rebuild is already running",
    "index_unavailable": "neither the index nor the ledger, as its fallback, can be reached",
    "build_running": "another server is building this ranking",
    "kafka_unavailable": "Kafka can't be reached, or does not accept a record",
    "spool_off": "the server was started without a spool",
    "spool_unavailable": "the ledger can't be reached, and the spool folder can't be written",
    "stopping": "the server is shutting down",
    "ledger_unavailable": "the ledger can't be reached or written",
    "write_timeout": "the write took too long and may still be stored: repeat it with the same eventId",
    "unreachable": "the client can't reach the server",
    "address_taken": "the server can't listen on this address",
    "internal": "an internal error in Laurels; the log has the details",
}
