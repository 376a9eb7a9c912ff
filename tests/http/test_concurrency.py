"""Concurrent increments of one user: none is lost or counted twice, and every response shows a committed score."""

import asyncio
from collections import Counter

import httpx

from support.calls import NewBoard
from support.running import ADMIN_KEY, PLAIN, RunningServer

CLIENTS = 200
ROUNDS = 5


def test_concurrent_increments_of_one_user_are_each_counted_once(
    server: RunningServer, api: httpx.Client, new_board: NewBoard
) -> None:
    board = f"/api/v1/leaderboards/{new_board(rule='increment')}"
    answers = asyncio.run(increment_at_once(server, board))
    total = CLIENTS * ROUNDS
    assert api.get(board + "/users/ada/rank").json()["score"] == total
    assert len(api.get(board + "/users/ada/history?limit=1000").json()["events"]) == total

    # Every response shows the score after a commit. All requests of a commit get the same score, and each added one.
    # So each score, in order, exceeds the one before by the number of responses that show it.
    shown = Counter(answer["score"] for answer in answers)
    held = 0.0
    for score, senders in sorted(shown.items()):
        assert score - held == senders
        held = score
    assert held == total
    assert {answer["previousScore"] or 0 for answer in answers} == {0, *shown} - {total}


async def increment_at_once(server: RunningServer, board: str) -> list[dict[str, float]]:
    limits = httpx.Limits(max_connections=CLIENTS)
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with httpx.AsyncClient(
        base_url=server.url, headers=headers, timeout=60, limits=limits, verify=PLAIN
    ) as client:

        async def increment() -> list[dict[str, float]]:
            answers = []
            for _ in range(ROUNDS):
                response = await client.put(board + "/users/ada", json={"score": 1})
                assert response.status_code == 200, response.text
                answers.append(response.json())
            return answers

        return [answer for each in await asyncio.gather(*(increment() for _ in range(CLIENTS))) for answer in each]
