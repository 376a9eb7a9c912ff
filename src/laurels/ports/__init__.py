"""Ports: the contracts between the service and the outside, one file per port.

Adapters document only where they differ. Every method may raise `Unavailable` if its store can't be reached. Nothing
has happened then, unless the error has `outcome_unknown` set: then a write may have been done. Instants are integers,
in microseconds since 1970 (UTC).
"""

from laurels.ports.audit import AuditEntry, AuditFilter, AuditStore
from laurels.ports.buckets import SharedBuckets, Spending
from laurels.ports.clock import Clock
from laurels.ports.feed import Feed, ranking_topic
from laurels.ports.index import (
    Applied,
    Distribution,
    Found,
    Held,
    Index,
    IndexHealth,
    IndexState,
    InstantRanks,
    Page,
    RangePage,
    RankChange,
    RankEntry,
    Ranks,
    RanksWanted,
    ScoreRange,
)
from laurels.ports.jobs import JobRun, JobStore
from laurels.ports.kafka import (
    Broker,
    Headers,
    KafkaRecord,
    OutgoingRecord,
    RecordConsumer,
    TopicPartition,
    Undelivered,
)
from laurels.ports.ledger import (
    BoardUpdate,
    Event,
    FreeInstant,
    Key,
    Ledger,
    NotAllStored,
    Pod,
    RecordedEvent,
    RecordOutcome,
    Refolded,
    Role,
    Row,
    RowChange,
    Scope,
    StoredEvent,
    Template,
    are_stored,
)
from laurels.ports.outbox import Message, Outbox, Sender, Webhook
from laurels.ports.periods import Final, Grant, PeriodStore, Result
from laurels.ports.position import AsOf, Position
from laurels.ports.profiles import ActionStep, Erasure, ModerationAction, ProfileStore, StoredAction, StoredReview
from laurels.ports.signing_keys import SigningKeys
from laurels.ports.spool import Spool
from laurels.ports.streams import DISCARDED, Cursors, Replay, StreamStore

__all__ = [
    "DISCARDED",
    "ActionStep",
    "Applied",
    "AsOf",
    "AuditEntry",
    "AuditFilter",
    "AuditStore",
    "BoardUpdate",
    "Broker",
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
    "Index",
    "IndexHealth",
    "IndexState",
    "InstantRanks",
    "JobRun",
    "JobStore",
    "KafkaRecord",
    "Key",
    "Ledger",
    "Message",
    "ModerationAction",
    "NotAllStored",
    "Outbox",
    "OutgoingRecord",
    "Page",
    "PeriodStore",
    "Pod",
    "Position",
    "ProfileStore",
    "RangePage",
    "RankChange",
    "RankEntry",
    "Ranks",
    "RanksWanted",
    "RecordConsumer",
    "RecordOutcome",
    "RecordedEvent",
    "Refolded",
    "Replay",
    "Result",
    "Role",
    "Row",
    "RowChange",
    "Scope",
    "ScoreRange",
    "Sender",
    "SharedBuckets",
    "SigningKeys",
    "Spending",
    "Spool",
    "StoredAction",
    "StoredEvent",
    "StoredReview",
    "StreamStore",
    "Template",
    "TopicPartition",
    "Undelivered",
    "Webhook",
    "are_stored",
    "ranking_topic",
]
