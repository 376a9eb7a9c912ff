"""Every error that Laurels raises on purpose, and what each becomes outside.

LaurelsError
├── Malformed          the request can't be read at all
├── Invalid            it can be read, and a value breaks a rule
├── TooLarge           it is over a size limit
├── WrongMediaType     the body is not declared as JSON
├── Unauthenticated    a key is needed, or this one is not known
├── Forbidden          the key is known and its role may not do this
├── NotFound           no such thing, or none that this caller may see
├── WrongMethod        the address exists, and not with this method
├── UpgradeRequired    the address is for WebSockets
├── Conflict           it contradicts what is stored
│   └── Busy           what it contradicts goes by soon: trying again later is right
├── TooMany            this caller asks for more than its share
├── Slow               the request did not arrive in time
├── Unavailable        Laurels can't do it now; trying again later is right
│   └── Stale          what this server knows of a board is no longer so: read it again
└── InternalError      a fault of ours

A `code` is stable and listed in CODES; texts may improve at any time.
"""

from collections.abc import Sequence
from typing import NamedTuple


class LaurelsError(Exception):
    """`field` is the path of the value at fault, `rule` the rule that it breaks."""

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
    retryable = True
    retry_after_s = 1


class Slow(LaurelsError):
    retryable = True


class Unavailable(LaurelsError):
    """`outcome_unknown`: a write may have been done all the same."""

    retryable = True
    retry_after_s = 1
    outcome_unknown = False


class Stale(Unavailable):
    pass


class InternalError(LaurelsError):
    pass


class Outside(NamedTuple):
    """What an error is to those who can't catch it."""

    http_status: int
    title: str
    exit_code: int


OUTSIDE: dict[type[LaurelsError], Outside] = {
    Malformed: Outside(400, "The request can't be read", 2),
    Invalid: Outside(422, "A value breaks a rule", 2),
    TooLarge: Outside(413, "The request is too large", 2),
    WrongMediaType: Outside(415, "The body must be JSON", 2),
    Unauthenticated: Outside(401, "A valid key is needed", 4),
    Forbidden: Outside(403, "This key may not do that", 4),
    NotFound: Outside(404, "Not found", 3),
    WrongMethod: Outside(405, "Not with this method", 2),
    UpgradeRequired: Outside(426, "This is for WebSockets", 2),
    Conflict: Outside(409, "It contradicts what is stored", 3),
    Busy: Outside(409, "It contradicts what is stored", 3),
    TooMany: Outside(429, "Too many at once", 5),
    Slow: Outside(408, "The request did not arrive in time", 5),
    Unavailable: Outside(503, "Not available now", 5),
    Stale: Outside(503, "Not available now", 5),
    InternalError: Outside(500, "A fault in Laurels", 1),
}

CODES: dict[str, str] = {
    # the request as a whole
    "invalid_json": "the body is not JSON (or not UTF-8)",
    "not_an_object": "the body is JSON and not an object",
    "too_deep": "the body nests deeper than allowed",
    "body_too_large": "the body is over the size limit of this call",
    "body_timeout": "the body did not arrive in time",
    "media_type_not_json": "the Content-Type is not application/json",
    "invalid_path": "the address has a part that is not UTF-8",
    "method_not_allowed": "this address exists, and not with this method",
    "no_such_address": "there is nothing at this address",
    "upgrade_required": "this address is for WebSockets; `stream` gives the same by plain HTTP",
    # one value
    "missing_field": "a required field is missing",
    "unknown_field": "a field is not one that this call knows",
    "wrong_type": "a value is of the wrong JSON type, such as a number in a string",
    "out_of_range": "a number is below or above what is allowed",
    "wrong_length": "a text or list is shorter or longer than allowed",
    "wrong_format": "a text has characters or a form that is not allowed",
    "not_a_choice": "a value is not one of the listed ones",
    "invalid_timestamp": "a timestamp is not RFC 3339 with a zone",
    "timestamp_out_of_range": "a timestamp is before 1970 or too far ahead of the server's clock",
    "not_finite": "a number is NaN, infinite or too large for a double",
    "not_exact": "an integer can't be held exactly as a double",
    "metadata_too_large": "the metadata is larger or deeper than allowed",
    "invalid_cursor": "the cursor is not one that this call gave out",
    "window_not_available": "this board or server does not have that window",
    "segment_not_available": "this board or server does not have that segment",
    "invalid_window": "a window's name, cron line or time zone can't be used",
    "invalid_reward": "a reward does not say who gets it, or says it twice",
    "period_not_found": "the board has no such period",
    "period_pruned": "the period's final ranks were kept as long as the board says, and are gone",
    "bounds_reversed": "endTime is before startTime, or maxScore below minScore",
    "duplicate_user": "a user stands twice in one list",
    "nothing_chosen": "the call says neither by eventIds nor by match which events it is about, or says both",
    "immutable_field": "this field can't change once the board exists",
    # events from Kafka
    "invalid_schema": "a schema's paths can't be used: one is empty, or stands within another",
    "schema_not_found": "the pod has no such schema, or none in use that the event could be read with",
    "schema_mismatch": "an event does not have what its schema says",
    "invalid_score": "an event's score is not a number of its schema's type that a double can hold",
    "record_too_large": "a Kafka record is over the size limit",
    "invalid_headers": "a Kafka record has a header whose name is not UTF-8",
    "wrong_pod": "an event came on the topic of a pod that its board does not belong to",
    "dead_letter_not_found": "there is no such dead letter",
    "kafka_off": "this server was started without Kafka",
    # who may
    "key_required": "this call needs a key (for a public board's reads none is needed)",
    "key_unknown": "the key is not known or was revoked",
    "role_forbidden": "the key's role may not do this",
    # what is there
    "board_not_found": "there is no such board, or none that this key may see",
    "pod_not_found": "there is no such pod, or none that this key may see",
    "key_not_found": "the pod has no such key",
    "user_not_found": "the user has no score on this board",
    "user_not_ranked": "the user has a score and is outside the board's capacity",
    "board_exists": "the UUID is taken",
    "pod_exists": "the podId is taken",
    "key_exists": "this Idempotency-Key already made a key; its secret was shown then",
    "too_many_schemas": "the pod has as many schemas as a pod may have",
    "schema_in_use": "events are read with the schema: retire it before you delete it",
    "too_many_boards": "the pod has as many boards as the server allows",
    "event_conflict": "the eventId was used before with another payload; the first stays",
    "board_not_started": "the board takes no scores yet",
    "board_ended": "the board takes no scores any more",
    "board_archived": "the board is archived: it can be read and not changed",
    "status_backwards": "a board's status only goes forward",
    "period_closed": "no period of the board takes scores of that time any more",
    "period_not_open": "the period is not going on: it can't be closed or extended by hand",
    "end_before_scores": "the board has scores of a later time than its new end",
    "period_has_scores": "the next period has scores already, or begins in a moment: it is too late to extend this one",
    "reward_withdrawn": "final ranks were set right, and the reward is not earned any more",
    "reward_not_found": "there is no such reward, or none that this key may see",
    "webhook_not_found": "the pod has no webhook",
    "act_not_found": "there is no such act, or none that this key may see",
    "act_conflict": "the Idempotency-Key was used before for something else",
    "act_final": "what this act did can't be taken back",
    "act_running": "an act on events of this board is still going on",
    "refreeze_running": "final ranks of this board are being set right",
    "freeze_running": "final ranks of this pod are being written, or an act is going on",
    "period_not_final": "the period has no final ranks that could be set right",
    "events_pruned": "not all events that this needs are kept any more",
    "user_erased": "the user was erased, and the score is of before that",
    "too_many_circles": "the user would be in more circles than allowed",
    "outside_board_time": "the timestamp is before the board's startTime or not before its endTime",
    "score_out_of_bounds": "the score is outside the board's minScore and maxScore",
    "changed_meanwhile": "somebody else changed it at the same time",
    # not now
    "too_many_pending": "this pod has too many writes waiting",
    "too_many_subscriptions": "this key, or this server, has as many live subscriptions as it may have",
    "overloaded": "the server has too many writes waiting",
    "starting": "the ledger is being opened, or the index loaded from it",
    "catching_up": "this ranking is being completed from the ledger",
    "verify_running": "a check or a rebuild is already running",
    "index_unavailable": "the index can't be reached, nor the ledger in its place",
    "build_running": "another server is building this ranking",
    "kafka_unavailable": "Kafka can't be reached, or does not take a letter",
    "spool_off": "this server keeps no events on its disk",
    "spool_unavailable": "the ledger can't be reached, and the spool folder can't be written",
    "stopping": "the server is shutting down",
    "ledger_unavailable": "the ledger can't be reached or written",
    "write_timeout": "the write took too long; it may still be stored: repeat it with the same eventId",
    "unreachable": "the client could not reach the server",
    "address_taken": "the server can't listen on that address",
    "internal": "a fault in Laurels; the log has the details",
}
