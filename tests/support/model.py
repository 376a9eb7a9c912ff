"""A model of Laurels in plain Python: no index, no ledger; computes every answer from the list of events."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

MAX_DOUBLE = Fraction(1.7976931348623157e308)


def exact(score: float) -> Fraction:
    """Return a score as an exact fraction: the decimal as written; from 2^53 on, the integer that the double is."""
    return Fraction(Decimal(repr(score))) if abs(score) < 2**53 else Fraction(score)


@dataclass
class Player:
    user: str
    score: float
    at: int
    subscore: int = 0


@dataclass
class ModelPerson:
    region: str | None = None
    region_at: int = 0
    circles: frozenset[str] = frozenset()
    # Board id (0: all boards) → 1: hidden, 2: shadow ban.
    hidden: dict[int, int] = field(default_factory=dict)

    def tell_region(self, region: str, at: int) -> None:
        if (at, region) > (self.region_at, self.region or ""):
            self.region, self.region_at = region, at

    def segments(self, kinds: Iterable[str]) -> tuple[str, ...]:
        region = [f"region:{self.region}"] if "region" in kinds and self.region is not None else []
        return (*region, *(f"circle:{circle}" for circle in sorted(self.circles) if "circle" in kinds))

    def hidden_on(self, board_id: int) -> int:
        return min((how for where, how in self.hidden.items() if where in {0, board_id}), default=0)


@dataclass
class ModelBoard:
    rule: str
    order: str
    ties: str
    capacity: int | None = None
    # event id → (user, score, at)
    events: dict[str, tuple[str, float, int]] = field(default_factory=dict)
    # "asc" or "desc", and event id → subscore
    sub_order: str | None = None
    subscores: dict[str, int] = field(default_factory=dict)

    def submit(self, event_id: str, user: str, score: float, at: int) -> str:
        known = self.events.setdefault(event_id, (user, score, at))
        return "seen" if known == (user, score, at) else "conflict"

    def fold(self, user: str) -> Player | None:
        mine = [
            (score, at, self.subscores.get(event_id, 0))
            for event_id, (who, score, at) in self.events.items()
            if who == user
        ]
        if not mine:
            return None
        if self.rule == "increment":
            total = sum(exact(score) for score, _, _ in mine)
            total = max(-MAX_DOUBLE, min(MAX_DOUBLE, total))
            moves = [at for score, at, _ in mine if score != 0]
            at = max(moves) if moves else min(at for _, at, _ in mine)
            return Player(user, float(total), at, sum(subscore for _, _, subscore in mine))
        if self.rule == "latest":
            newest = max(at for _, at, _ in mine)
            mine = [each for each in mine if each[1] == newest]
        score, subscore = min(((score, subscore) for score, _, subscore in mine), key=lambda each: self.tie(*each))
        return Player(user, score, min(at for s, at, sub in mine if (s, sub) == (score, subscore)), subscore)

    def tie(self, score: float, subscore: int) -> tuple[float, int]:
        """Return a key that is smaller for better ones."""
        return (
            -score if self.order == "desc" else score,
            0 if self.sub_order is None else -subscore if self.sub_order == "desc" else subscore,
        )

    def everybody(self) -> list[Player]:
        players = [self.fold(user) for user in {who for who, _, _ in self.events.values()}]
        return sorted(
            (player for player in players if player),
            key=lambda p: (
                *self.tie(p.score, p.subscore),
                -p.at if self.ties == "latest" else p.at,
                p.user.encode(),
            ),
        )

    def ranked(self) -> list[Player]:
        return self.everybody()[: self.capacity]

    def rank(self, player: Player, style: str | None = None) -> int:
        style = style or ("competition" if self.ties == "shared" else "ordinal")
        ranked, own = self.ranked(), self.tie(player.score, player.subscore)
        better = [tie for p in ranked if (tie := self.tie(p.score, p.subscore)) < own]
        if style == "ordinal":
            return next(number for number, p in enumerate(ranked, 1) if p.user == player.user)
        return 1 + (len(better) if style == "competition" else len(set(better)))

    def percentile(self, player: Player) -> float:
        ranked = self.ranked()
        own = self.tie(player.score, player.subscore)
        not_better = [p for p in ranked if self.tie(p.score, p.subscore) >= own]
        return float(Fraction(100 * len(not_better), len(ranked)))
