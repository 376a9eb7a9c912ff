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

    def submit(self, event_id: str, user: str, score: float, at: int) -> str:
        known = self.events.setdefault(event_id, (user, score, at))
        return "seen" if known == (user, score, at) else "conflict"

    def fold(self, user: str) -> Player | None:
        mine = [(score, at) for who, score, at in self.events.values() if who == user]
        if not mine:
            return None
        if self.rule == "increment":
            total = sum(exact(score) for score, _ in mine)
            total = max(-MAX_DOUBLE, min(MAX_DOUBLE, total))
            moves = [at for score, at in mine if score != 0]
            return Player(user, float(total), max(moves) if moves else min(at for _, at in mine))
        best = max if self.order == "desc" else min
        if self.rule == "best":
            score = best(score for score, _ in mine)
            return Player(user, score, min(at for each, at in mine if each == score))
        newest = max(at for _, at in mine)
        return Player(user, best(score for score, at in mine if at == newest), newest)

    def everybody(self) -> list[Player]:
        players = [self.fold(user) for user in {who for who, _, _ in self.events.values()}]
        return sorted(
            (player for player in players if player),
            key=lambda p: (
                -p.score if self.order == "desc" else p.score,
                -p.at if self.ties == "latest" else p.at,
                p.user.encode(),
            ),
        )

    def ranked(self) -> list[Player]:
        return self.everybody()[: self.capacity]

    def rank(self, player: Player, style: str | None = None) -> int:
        style = style or ("competition" if self.ties == "shared" else "ordinal")
        ranked = self.ranked()
        better = [p for p in ranked if (p.score > player.score if self.order == "desc" else p.score < player.score)]
        if style == "ordinal":
            return next(number for number, p in enumerate(ranked, 1) if p.user == player.user)
        return 1 + (len(better) if style == "competition" else len({p.score for p in better}))

    def percentile(self, player: Player) -> float:
        ranked = self.ranked()
        not_better = [
            p for p in ranked if not (p.score > player.score if self.order == "desc" else p.score < player.score)
        ]
        return float(Fraction(100 * len(not_better), len(ranked)))
