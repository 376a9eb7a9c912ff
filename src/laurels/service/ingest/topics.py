"""What the topics of a pod are called."""

import re

from msgspec import Struct

from laurels.core.limits import POD_ID_CHARS


class Topics(Struct, frozen=True):
    """`prefix`: what all of them begin with, so that several ledgers can share a Kafka."""

    prefix: str = ""

    @property
    def pattern(self) -> str:
        """All topics on which scores arrive. For librdkafka a name that begins with ^ is a pattern.

        What no pod can be called is left alone: its dead letters might not even have a topic.
        """
        return f"^{re.escape(self.prefix)}pod-[A-Za-z0-9][A-Za-z0-9._-]{{0,{POD_ID_CHARS - 1}}}-score-updates$"

    def pod_of(self, topic: str) -> str:
        """The pod whose scores arrive there."""
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
