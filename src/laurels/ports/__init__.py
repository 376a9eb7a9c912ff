"""The contracts between the service and the outside, each in a file of its own. Adapters say only where they differ.

Every method may raise `Unavailable` when its store can't be reached; nothing has happened then, unless the error says
that the outcome is unknown.
"""

from laurels.ports.clock import Clock
from laurels.ports.feed import Feed
from laurels.ports.index import (
    Applied,
    Distribution,
    Found,
    Held,
    Index,
    IndexState,
    Page,
    Place,
    Placement,
    Ranks,
    Refill,
    Standby,
)
from laurels.ports.jobs import JobBook, JobRun
from laurels.ports.ledger import (
    BoardChange,
    Change,
    Event,
    FreeInstant,
    Key,
    Ledger,
    Pod,
    Record,
    Recorded,
    Refolded,
    Role,
    Row,
    StoredEvent,
)
from laurels.ports.letters import Broker, Headers, Inbox, Lane, Letter, Outgoing, Undelivered
from laurels.ports.outbox import Message, Outbox, Sender, Webhook
from laurels.ports.people import Act, Erasure, People, StoredAct, Touched
from laurels.ports.position import AsOf, Position
from laurels.ports.seasons import Final, Grant, Result, Seasons
from laurels.ports.spool import Spool
from laurels.ports.streams import Cursors, Replay, Streams

__all__ = [
    "Act",
    "Applied",
    "AsOf",
    "BoardChange",
    "Broker",
    "Change",
    "Clock",
    "Cursors",
    "Distribution",
    "Erasure",
    "Event",
    "Feed",
    "Final",
    "Found",
    "FreeInstant",
    "Grant",
    "Headers",
    "Held",
    "Inbox",
    "Index",
    "IndexState",
    "JobBook",
    "JobRun",
    "Key",
    "Lane",
    "Ledger",
    "Letter",
    "Message",
    "Outbox",
    "Outgoing",
    "Page",
    "People",
    "Place",
    "Placement",
    "Pod",
    "Position",
    "Ranks",
    "Record",
    "Recorded",
    "Refill",
    "Refolded",
    "Replay",
    "Result",
    "Role",
    "Row",
    "Seasons",
    "Sender",
    "Spool",
    "Standby",
    "StoredAct",
    "StoredEvent",
    "Streams",
    "Touched",
    "Undelivered",
    "Webhook",
]
