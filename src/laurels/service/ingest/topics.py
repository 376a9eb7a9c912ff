"""The names of a pod's Kafka topics."""

import re

from msgspec import Struct

from laurels.core.limits import POD_ID_CHARS


class Topics(Struct, frozen=True):
    """The topic names of one ledger.

    `prefix`: the start of every name, so that several ledgers can share a Kafka cluster.
    """

    prefix: str = ""

    @property
    def pattern(self) -> str:
        """Return the pattern of all topics on which scores arrive.

        librdkafka treats a name that starts with ^ as a pattern. Topics without a valid pod id don't match, because the
        name of their dead letter topic might be invalid.
        """
        return f"^{re.escape(self.prefix)}pod-[A-Za-z0-9][A-Za-z0-9._-]{{0,{POD_ID_CHARS - 1}}}-score-updates$"

    def pod_of(self, topic: str) -> str:
        """Return the pod whose scores arrive on a topic."""
        return topic.removeprefix(f"{self.prefix}pod-").removesuffix("-score-updates")

    def updates(self, pod_id: str) -> str:
        return f"{self.prefix}pod-{pod_id}-score-updates"

    def dead_letters(self, pod_id: str) -> str:
        return f"{self.prefix}pod-{pod_id}-score-updates-dlq"

    def score_changes(self, pod_id: str) -> str:
        return f"{self.prefix}pod-{pod_id}-score-changes"

    def period_ends(self, pod_id: str) -> str:
        return f"{self.prefix}pod-{pod_id}-period-ends"

    def rewards(self, pod_id: str) -> str:
        return f"{self.prefix}pod-{pod_id}-rewards"
