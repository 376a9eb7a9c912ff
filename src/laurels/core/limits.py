"""Limits on the values that a caller may send. They are part of the API: docs/api.md lists them."""

from laurels.core.instants import SECOND_US

USER_ID_CHARS = 256
EVENT_ID_CHARS = 256
# Shorter than an event id, because a batch appends the item's number to it.
IDEMPOTENCY_KEY_CHARS = 200
BOARD_UUID_CHARS = 128
POD_ID_CHARS = 64
NAME_CHARS = 200
METADATA_BYTES = 4096
METADATA_DEPTH = 16
ATTRIBUTES_BYTES = 1024
BATCH_ITEMS = 10_000
# Users that one call removes.
REMOVED_USERS = 1000
RANKS_USERS = 1000
PAGE_ENTRIES = 1000
AROUND_ENTRIES = 500
FOUND_USERS = 50
BUCKETS = 1000
REVIEW_RULES = 20
# Of one event; a sum of 2^32 of them fits 64 bits.
SUBSCORE = 2**31 - 1
# The longest time that a score stays without a newer one.
SCORE_TTL_S = 10 * 366 * 86_400
REVIEW_MATCHES = 20
# Templates of boards in a pod.
TEMPLATES = 100
OPEN_SECONDS = 366 * 24 * 3600
ATTEMPTS = 10_000
CAPACITY = 10_000_000
SHARDS = 1024
WINDOWS = 16
WINDOW_NAME_CHARS = 32
CRON_CHARS = 100
GRACE_S = 7 * 86_400
FLUSH_MS = 60_000
REWARDS = 50
REWARD_NAME_CHARS = 64
PRIZE_BYTES = 2048
KEEP_DAYS = 36_500
URL_CHARS = 2000
REGION_CHARS = 64
CIRCLE_CHARS = 64
CIRCLES = 50
PROFILES = 1000
REASON_CHARS = 500
VOIDED_EVENTS = 1000
MATCHED_FIELDS = 8
MATCHED_CHARS = 256
SCHEMAS = 100
SCHEMA_VERSION_CHARS = 64
PATH_CHARS = 200
PATH_PARTS = 8
HEADER_CHARS = 100
DEAD_LETTERS = 500
ORIGINS = 50
ORIGIN_CHARS = 300
OVERLAP_SECONDS = 90 * 86_400
TOKEN_SECONDS = 86_400
PLAYER_WRITES = 6000
OFFSET = 2**53

BODY_BYTES = 64 * 1024
BATCH_BODY_BYTES = 8 * 1024 * 1024
# Room for 1000 ids of 256 characters with four bytes each.
RANKS_BODY_BYTES = 2 * 1024 * 1024
PROFILES_BODY_BYTES = 8 * 1024 * 1024
VOID_BODY_BYTES = 2 * 1024 * 1024
# A Kafka record with a game's event.
RECORD_BYTES = 64 * 1024

DAY_US = 86_400 * SECOND_US
# How far an event may be ahead of the server's clock, because clocks differ.
AHEAD_US = 5 * 60 * SECOND_US

# No control characters, because they break logs, terminals and CSV files. All other characters are allowed. `$` alone
# would accept a newline at the end. The OpenAPI document omits the look-ahead (see http/openapi.py).
END = "$(?!\\n)"
ID_PATTERN = f"^[^\\u0000-\\u001f\\u007f-\\u009f]+{END}"
# Nothing that is invisible or changes the direction of writing, because a name could then look like another one.
# Emoji and some scripts join characters with U+200C and U+200D: one of these is allowed between two
# characters that are not ASCII.
_INVISIBLE = (
    "\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e"
    "\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb"
    # Tags and variation selectors beyond the first 65,536 characters, which have no escape in JSON Schema.
    "\U000e0000-\U000e0fff"
)
_JOINABLE = "[^\\u0000-\\u007f\\u200c\\u200d]"
DISPLAY_NAME_PATTERN = f"^(?:[^{_INVISIBLE}]|(?<={_JOINABLE})[\\u200c\\u200d](?={_JOINABLE}))+{END}"
KEY_ID_PATTERN = f"^[0-9a-f]{{12}}{END}"
DIGEST_PATTERN = f"^[0-9a-f]{{64}}{END}"
URL_PATTERN = f"^https?://[^\\s\\u0000-\\u001f\\u007f-\\u009f]+{END}"
# A scheme, a host and a port, as browsers send it in the header Origin.
ORIGIN_PATTERN = f"^(\\*|[a-z][a-z0-9+.-]*://[^\\s/?#@,]+){END}"
LETTER_ID_PATTERN = f"^[0-9]{{1,9}}-[0-9]{{1,18}}{END}"
PATH_PATTERN = f"^[^.\\u0000-\\u001f]+(\\.[^.\\u0000-\\u001f]+)*{END}"
# Board and pod ids appear in URLs, topics and file names.
SLUG_PATTERN = f"^[A-Za-z0-9][A-Za-z0-9._-]*{END}"
# Up to 20 percentiles from 0 to 100 with up to four decimals, separated by commas.
_PERCENTILE = "(?:100(?:\\.0{1,4})?|[0-9]{1,2}(?:\\.[0-9]{1,4})?)"
PERCENTILES = 20
PERCENTILES_CHARS = 200
PERCENTILES_PATTERN = f"^{_PERCENTILE}(?:,{_PERCENTILE}){{0,{PERCENTILES - 1}}}{END}"
# Up to 20 boards, separated by commas. A head with so many characters fits into a request, however they are encoded.
BOARDS = 20
BOARDS_CHARS = 2000
_SLUG = "[A-Za-z0-9][A-Za-z0-9._-]*"
BOARDS_PATTERN = f"^{_SLUG}(?:,{_SLUG}){{0,{BOARDS - 1}}}{END}"
INCLUDE_PATTERN = f"^(?:metadata|attributes|metadata,attributes|attributes,metadata){END}"
