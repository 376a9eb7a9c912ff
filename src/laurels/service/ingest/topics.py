"""What the topics of a pod are called."""

import re

# For librdkafka a name that begins with ^ is a pattern.
PATTERN = "^pod-.+-score-updates$"
_UPDATES = re.compile(r"pod-(?P<pod>.+)-score-updates")


def pod_of(topic: str) -> str | None:
    """The pod whose scores arrive there."""
    match = _UPDATES.fullmatch(topic)
    return match["pod"] if match else None


def updates(pod_id: str) -> str:
    return f"pod-{pod_id}-score-updates"


def dead_letters(pod_id: str) -> str:
    return f"pod-{pod_id}-score-updates-dlq"


def score_changes(pod_id: str) -> str:
    return f"pod-{pod_id}-score-changes"


def period_ends(pod_id: str) -> str:
    return f"pod-{pod_id}-period-ends"


def rewards(pod_id: str) -> str:
    return f"pod-{pod_id}-rewards"
