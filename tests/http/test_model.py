"""Random boards and events through the real HTTP stack; every read equals that of the plain model."""

import random
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from math import ceil, isclose
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from laurels.core.instants import EPOCH
from laurels.core.scores import Rule
from support.both_stores import api, new_board, server
from support.calls import NewBoard, problem
from support.effort import examples
from support.model import MAX_DOUBLE, ModelBoard, Player

__all__ = ["api", "new_board", "server"]

USERS = ["ada", "ad", "a/b", "a b", "%2F", "é", "日本", "👑", "x" * 256, *(f"u{number}" for number in range(50))]
STYLES = ["ordinal", "competition", "dense"]

boards = st.builds(
    ModelBoard,
    st.sampled_from([rule.value for rule in Rule]),
    st.sampled_from(["desc", "asc"]),
    st.sampled_from(["earliest", "latest", "shared"]),
    st.sampled_from([None, 1, 3, 10]),
)
scores = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.1, 0.2, 0.3, -0.0, 1e-320, 2**53, -(2**53), 1.7e308]),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
events = st.lists(st.tuples(st.sampled_from(USERS), scores, st.integers(0, 3)), min_size=1, max_size=15)


@given(boards, events, st.integers(0, 70), st.sampled_from([None, "asc", "desc"]), st.randoms(use_true_random=False))
@settings(max_examples=examples(120))
def test_every_http_read_equals_the_model(
    api: httpx.Client,
    new_board: NewBoard,
    model: ModelBoard,
    drawn: list[tuple[str, float, int]],
    crowd: int,
    sub_order: str | None,
    rng: random.Random,
) -> None:
    model.events, model.sub_order = {}, sub_order
    uuid = new_board(
        rule=model.rule, order=model.order, ties=model.ties, capacity=model.capacity, subscore=model.sub_order
    )
    board = f"/api/v1/leaderboards/{uuid}"
    # Enough users to exceed the capacity.
    drawn = drawn + [(rng.choice(USERS), float(rng.randrange(20)), rng.randrange(3)) for _ in range(crowd)]
    events = [(f"event-{number}", *each) for number, each in enumerate(drawn)]
    model.subscores = {event[0]: 0 if sub_order is None else rng.randrange(-1, 3) for event in events}
    sent = events + rng.choices(events, k=len(events) // 2)
    rng.shuffle(sent)
    while sent:
        if rng.random() < 0.5:
            put_one(api, board, model, *sent.pop())
        else:
            size = rng.randrange(1, 60)
            post_many(api, board, model, sent[:size])
            sent = sent[size:]
        # Read the same page repeatedly while scores arrive.
        page = get(api, f"{board}/top", {"limit": 3})
        assert page["users"] == [entry(model, player, None) for player in model.ranked()[:3]]
    check_reads(api, board, model, rng)


def put_one(api: httpx.Client, board: str, model: ModelBoard, event_id: str, user: str, score: float, at: int) -> None:
    before = model.fold(user)
    before_rank = rank_of(model, before)
    known = event_id in model.events
    model.submit(event_id, user, score, at)
    answer = put(api, f"{board}/users/{quote(user, safe='')}", item(model, event_id, score, at))
    after = model.fold(user)
    assert after is not None
    assert (answer["score"], answer["previousScore"]) == (after.score, before and before.score)
    assert answer.get("subscore") == (None if model.sub_order is None else after.subscore)
    assert (answer["rank"], answer["previousRank"]) == (rank_of(model, after), before_rank)
    assert answer["duplicate"] == known
    assert answer["rankState"] == ("ranked" if answer["rank"] else "outside_capacity")


def post_many(api: httpx.Client, board: str, model: ModelBoard, sent: list[tuple[str, str, float, int]]) -> None:
    known = set(model.events)
    response = api.post(
        f"{board}/scores",
        content=msgspec.json.encode(
            {"scores": [item(model, event_id, score, at) | {"userId": user} for event_id, user, score, at in sent]}
        ),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 200, response.text
    for each in sent:
        model.submit(*each)
    for (event_id, user, _, _), result in zip(sent, response.json()["results"], strict=True):
        after = model.fold(user)
        assert after is not None
        assert result["status"] == ("duplicate" if event_id in known else "accepted")
        known.add(event_id)
        assert (result["userId"], result["score"], result["rank"]) == (user, after.score, rank_of(model, after))


def check_reads(api: httpx.Client, board: str, model: ModelBoard, rng: random.Random) -> None:
    ranked = model.ranked()
    total = len(ranked)
    for style in [None, *STYLES]:
        asked = {"ranking": style} if style else {}
        entries = [entry(model, player, style) for player in ranked]
        for offset, limit in [(0, 1000), (0, 1), (max(0, total - 1), 2), (total, 1), (rng.randrange(total + 1), 3)]:
            page = get(api, f"{board}/top", {"limit": limit, "offset": offset} | asked)
            assert page["users"] == entries[offset : offset + limit]
            assert page["totalUsers"] == total
        for number in {0, total - 1, rng.randrange(total)}:
            player = ranked[number]
            path = f"{board}/users/{quote(player.user, safe='')}"
            answer = get(api, f"{path}/rank", asked)
            assert {name: answer[name] for name in entries[number]} == entries[number]
            assert (answer["percentile"], answer["totalUsers"]) == (model.percentile(player), total)
            for above, below in [(4, 4), (0, 0), (0, 500), (500, 0), (1, 2)]:
                around = get(api, f"{path}/around", {"above": above, "below": below} | asked)
                assert around["users"] == entries[max(0, number - above) : number + below + 1]
                filled = get(api, f"{path}/around", {"above": above, "below": below, "fill": True} | asked)["users"]
                first = max(0, min(number - above, total - above - below - 1))
                assert filled == entries[first : first + above + below + 1]
        check_subset(api, board, model, rng, style)
        check_by_score(api, board, model, rng, style, entries)
    check_distribution(api, board, model)
    outside = {player.user for player in model.everybody()} - {player.user for player in ranked}
    for user in list(outside)[:1]:
        path = f"{board}/users/{quote(user, safe='')}"
        answer = get(api, f"{path}/rank", {})
        own = model.fold(user)
        assert own is not None
        everybody = replace(model, capacity=None)
        assert (answer["rank"], answer["rankState"], answer["totalUsers"]) == (None, "outside_capacity", total)
        assert (answer["score"], answer["percentile"]) == (own.score, everybody.percentile(own))
        problem(api.get(f"{path}/around"), 404, "user_not_ranked", "userId")
    for user in [user for user in USERS if model.fold(user) is None][:1]:
        problem(api.get(f"{board}/users/{quote(user, safe='')}/rank"), 404, "user_not_found", "userId")


def check_by_score(
    api: httpx.Client,
    board: str,
    model: ModelBoard,
    rng: random.Random,
    style: str | None,
    entries: list[dict[str, Any]],
) -> None:
    """Check the reads by score, from the end, and of the best percent. `entries` is the whole ranking in the style."""
    asked = {"ranking": style} if style else {}
    total = len(entries)
    for offset, limit in [(0, 5), (total - 1, 3), (rng.randrange(total + 2), 2)]:
        page = get(api, f"{board}/top", {"limit": limit, "offset": offset, "order": "reverse"} | asked)
        assert (page["users"], page["totalUsers"]) == (entries[::-1][offset : offset + limit], total)
    percent = rng.choice([0.1, 5, 33.3, 50, 100])
    if style != "dense":
        best = get(api, f"{board}/top", {"limit": 1000, "percent": percent} | asked)["users"]
        assert best == [each for each in entries if (each["rank"] - 1) * 100 < Fraction(str(percent)) * total]
        worst = get(api, f"{board}/top", {"limit": 1000, "percent": percent, "order": "reverse"} | asked)["users"]
        assert worst == entries[::-1][: max(1, ceil(Fraction(str(percent)) * total / 100))]
    low, high = sorted(rng.choice(entries)["score"] + rng.choice([0, 0, 0.5]) for _ in range(2))
    for bounds in ({"minScore": low, "maxScore": high}, {"minScore": low}, {"maxScore": high}):
        inside = [
            each
            for each in entries
            if bounds.get("minScore", each["score"]) <= each["score"] <= bounds.get("maxScore", each["score"])
        ]
        offset, limit = rng.choice([(0, 1000), (0, 2), (1, 3)])
        for order in ("forward", "reverse"):
            page = get(api, f"{board}/range", {"offset": offset, "limit": limit, "order": order} | bounds | asked)
            ordered = inside if order == "forward" else inside[::-1]
            assert (page["users"], page["count"]) == (ordered[offset : offset + limit], len(inside))
    check_place(api, board, model, style, entries, high)


def check_place(
    api: httpx.Client, board: str, model: ModelBoard, style: str | None, entries: list[dict[str, Any]], score: float
) -> None:
    """Check where a score would stand: as a new user who reaches it after all others."""
    asked = {"ranking": style} if style else {}
    worst = 1_000_000 if model.sub_order == "asc" else -1_000_000
    with_new = replace(
        model,
        events=model.events | {"new": ("new user", score, 10)},
        subscores=model.subscores | ({} if model.sub_order is None else {"new": worst}),
    )
    new = with_new.fold("new user")
    assert new is not None
    ranked = [player.user for player in with_new.ranked()]
    answer = get(api, f"{board}/rank", {"score": score, "above": 2, "below": 3} | asked)
    if "new user" in ranked:
        assert answer["rank"] == with_new.rank(new, style)
        number = ranked.index("new user")
        assert answer["users"] == entries[max(0, number - 2) : number + 3]
    else:
        assert answer["rank"] is None
        assert answer["users"] == entries[-2:]
    among = model.ranked() if "new user" in ranked else model.everybody()
    own = model.tie(score, new.subscore)
    better = [p for p in among if model.tie(p.score, p.subscore) < own]
    assert answer["percentile"] == 100 * (len(among) - len(better)) / len(among)


def check_distribution(api: httpx.Client, board: str, model: ModelBoard) -> None:
    scores = sorted(player.score for player in model.ranked())
    spread = get(api, f"{board}/distribution", {"percentiles": "0,12.5,99.99", "sum": True})
    found = {each: scores[max(0, ceil(Fraction(each) * len(scores) / 100) - 1)] for each in ("0", "12.5", "99.99")}
    assert spread["percentiles"] == [{"percentile": float(each), "score": score} for each, score in found.items()]
    total = float(max(-MAX_DOUBLE, min(MAX_DOUBLE, sum(map(Fraction, scores)))))
    # Large scores of both signs cancel each other out, and the sum of the smallest ones is rounded to 0.
    tolerance = 1e-6 * max(map(abs, scores)) + 1e-300
    assert isclose(spread["sum"], total, rel_tol=1e-9, abs_tol=tolerance)
    assert isclose(spread["mean"], total / len(scores), rel_tol=1e-9, abs_tol=tolerance)


def check_subset(api: httpx.Client, board: str, model: ModelBoard, rng: random.Random, style: str | None) -> None:
    friends = rng.sample(USERS, 8)
    response = api.post(f"{board}/ranks", json={"userIds": friends}, params={"ranking": style} if style else {})
    assert response.status_code == 200, response.text
    answer = response.json()
    among = [player for player in model.ranked() if player.user in friends]
    subset = ModelBoard(model.rule, model.order, model.ties, sub_order=model.sub_order, subscores=model.subscores)
    subset.events = {key: event for key, event in model.events.items() if event[0] in {p.user for p in among}}
    assert answer["users"] == [
        entry(model, player, style) | {"position": subset.rank(player, style)} for player in among
    ]
    assert answer["missing"] == [user for user in friends if user not in {player.user for player in among}]


def item(model: ModelBoard, event_id: str, score: float, at: int) -> dict[str, Any]:
    told = {"eventId": event_id, "score": score, "timestamp": moment(at)}
    return told if model.sub_order is None else told | {"subscore": model.subscores[event_id]}


def entry(model: ModelBoard, player: Player, style: str | None) -> dict[str, Any]:
    told = {
        "userId": player.user,
        "rank": model.rank(player, style),
        "score": player.score,
        "timestamp": moment(player.at),
    }
    return told if model.sub_order is None else told | {"subscore": player.subscore}


def rank_of(model: ModelBoard, player: Player | None) -> int | None:
    ranked = {each.user for each in model.ranked()}
    return model.rank(player) if player is not None and player.user in ranked else None


def moment(at: int) -> str:
    return (EPOCH + timedelta(seconds=at)).isoformat().replace("+00:00", "Z")


def put(api: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = api.put(path, content=msgspec.json.encode(body), headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text
    return dict(response.json())


def get(api: httpx.Client, path: str, params: dict[str, Any]) -> dict[str, Any]:
    response = api.get(path, params=params)
    assert response.status_code == 200, response.text
    return dict(response.json())
