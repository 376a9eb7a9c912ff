"""`laurels import --from`: everything of another Laurels, while it runs: pods, keys, boards and all events.

An event keeps its id, so it counts once however often this is repeated; repeat it to bring over what came meanwhile.
"""

import hashlib
from typing import Any
from urllib.parse import quote

import httpx
import typer

from laurels.cli.connect import call
from laurels.cli.progress import show_progress
from laurels.errors import Conflict, Invalid, NotFound, Unavailable

PAGE = 1000
PATIENT = 8
# What a board is made of; the rest of what a server says about it follows from that.
DEFINITION = (
    "UUID", "podId", "name", "rule", "order", "ties", "capacity", "windows", "segments", "public", "metadata",
    "graceSeconds", "flushMs",
)  # fmt: skip
# These it gets when its events are in: an older one may lie outside of them.
BOUNDS = ("minScore", "maxScore", "startTime", "endTime", "rewards", "keepEventsDays", "keepPeriodsDays")
CLOSED = {"ENDED", "ARCHIVED"}


class Move:
    def __init__(self, source: httpx.AsyncClient, target: httpx.AsyncClient) -> None:
        self._source = source
        self._target = target
        self.pods = self.keys = self.boards = self.accepted = self.duplicates = 0
        self.refused: list[str] = []
        # What can't be brought over.
        self.left: list[str] = []

    async def everything(self, only_board: str | None) -> None:
        if await _ledger_id(self._source) == await _ledger_id(self._target):
            raise Invalid(
                "wrong_format",
                "--from names the Laurels that would be written to. Name the new one with --url and --key.",
                field="--from",
            )
        boards = [board for board in await self._boards() if only_board in {None, board["UUID"]}]
        if only_board is not None and not boards:
            raise NotFound("board_not_found", f"There is no board {only_board!r} to import.", field="BOARD")
        pods = {pod["podId"]: pod for pod in (await call(self._source, "GET", "/api/v1/pods"))["pods"]}
        wanted = {board["podId"] for board in boards} if only_board else set(pods)
        for pod_id in sorted(wanted):
            await self._pod(pods[pod_id], with_keys=only_board is None)
        for board in boards:
            await self._board(board)

    async def _boards(self) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        # Archived ones are listed only when asked for.
        for status in (None, "ARCHIVED"):
            params: dict[str, Any] = {"limit": PAGE} | ({} if status is None else {"status": status})
            while True:
                page = await call(self._source, "GET", "/api/v1/leaderboards", params=params)
                found |= {board["UUID"]: board for board in page["leaderboards"]}
                if page["nextCursor"] is None:
                    break
                params["cursor"] = page["nextCursor"]
        return list(found.values())

    async def _pod(self, pod: dict[str, Any], *, with_keys: bool) -> None:
        body = {"podId": pod["podId"], "name": pod["name"]}
        await call(self._target, "POST", "/api/v1/pods", json=body)
        self.pods += 1
        if not with_keys:
            return
        path = f"/api/v1/pods/{quote(pod['podId'], safe='')}/keys"
        keys = (await call(self._source, "GET", path, params={"digests": True}))["keys"]
        for key in keys:
            body = {name: key[name] for name in ("role", "label", "keyId", "digest")}
            try:
                await call(self._target, "POST", path, json=body)
                self.keys += 1
            except Conflict:
                typer.echo(f"The key {key['keyId']} was revoked here, and stays so.", err=True)

    async def _board(self, board: dict[str, Any]) -> None:
        path = f"/api/v1/leaderboards/{quote(board['UUID'], safe='')}"
        there = await self._create(path, board)
        self.boards += 1
        if there["status"] in CLOSED:
            await self._check_complete(path, board)
            return
        await self._events(path, board)
        await self._tell_what_stays(path, board)
        bounds = {name: board[name] for name in BOUNDS if board[name] not in (None, [])}
        if any(there[name] != bounds[name] for name in bounds):
            await call(self._target, "PATCH", path, json=bounds)
        if board["status"] == "ARCHIVED":
            await call(self._target, "DELETE", path)

    async def _tell_what_stays(self, path: str, board: dict[str, Any]) -> None:
        periods = (await call(self._source, "GET", path + "/periods", params={"limit": PAGE}))["periods"]
        past = sum(period["status"] in {"CLOSING", "FINAL"} for period in periods)
        if past:
            many = "or more " if len(periods) == PAGE else ""
            self.left.append(
                f"{board['UUID']}: {past} {many}past periods stay there, with their final ranks and rewards. "
                "Their events are here, and count in the windows that still take them."
            )
        if board["prunedBefore"] is not None:
            self.left.append(
                f"{board['UUID']}: events before {board['prunedBefore']} were pruned there. What they added up to "
                "can't be brought over: scores may be lower here."
            )

    async def _create(self, path: str, board: dict[str, Any]) -> dict[str, Any]:
        definition = {name: board[name] for name in DEFINITION}
        try:
            created: dict[str, Any] = await call(self._target, "POST", "/api/v1/leaderboards", json=definition)
        except Conflict:
            created = await call(self._target, "GET", path)
            fixed = ("podId", "rule", "order", "ties", "windows", "segments")
            if any(created[name] != board[name] for name in fixed):
                raise
        return created

    async def _events(self, path: str, board: dict[str, Any]) -> None:
        removals = _Removals()
        params: dict[str, Any] = {"limit": PAGE, "voided": True}
        done, total = 0, None
        with show_progress(f"Importing {board['UUID']}") as advance:
            while True:
                page = await call(self._source, "GET", path + "/events", params=params, tries=PATIENT)
                total = page["totalEvents"] if total is None else total
                for events, removed in removals.split(page["events"]):
                    await self._send(path, events)
                    for user_id, key in removed:
                        await self._remove(path, user_id, key)
                done += len(page["events"])
                advance(done, max(total or 0, done))
                if page["nextCursor"] is None:
                    break
                params["cursor"] = page["nextCursor"]
            for user_id, key in removals.rest():
                await self._remove(path, user_id, key)

    async def _send(self, path: str, events: list[dict[str, Any]]) -> None:
        if not events:
            return
        items = [
            {name: value for name, value in event.items() if name != "voided" and value is not None} for event in events
        ]
        answer = await call(self._target, "POST", path + "/scores", json={"scores": items}, tries=PATIENT)
        for event, result in zip(events, answer["results"], strict=True):
            if result["status"] == "refused":
                self.refused.append(
                    f"{path.rpartition('/')[2]}, event {event['eventId']}: {result['problem']['detail']}"
                )
            elif result["status"] == "duplicate":
                self.duplicates += 1
            else:
                self.accepted += 1

    async def _remove(self, path: str, user_id: str, key: str) -> None:
        """As it was removed there. The key follows from the events, so that a repetition does not remove again."""
        headers = {"Idempotency-Key": key}
        try:
            await call(
                self._target, "DELETE", f"{path}/users/{quote(user_id, safe='')}", headers=headers, tries=PATIENT
            )
        except NotFound:
            return

    async def _check_complete(self, path: str, board: dict[str, Any]) -> None:
        counts = [
            (await call(client, "GET", path + "/events", params={"limit": 1}))["totalEvents"]
            for client in (self._source, self._target)
        ]
        if counts[0] != counts[1]:
            self.refused.append(f"{board['UUID']}: it has ended here with {counts[1]} of {counts[0]} events.")

    @property
    def summary(self) -> str:
        return (
            f"Pods: {self.pods}, keys: {self.keys}, boards: {self.boards}. "
            f"Events: {self.accepted} accepted, {self.duplicates} already there, {len(self.refused)} refused."
        )


class _Removals:
    """Users whose events so far are voided. They are removed as soon as one of their events counts, or at the end."""

    def __init__(self) -> None:
        self._voided: dict[str, str] = {}

    def split(self, events: list[dict[str, Any]]) -> list[tuple[list[dict[str, Any]], list[tuple[str, str]]]]:
        """Stretches of events, and who is to be removed after each of them."""
        parts: list[tuple[list[dict[str, Any]], list[tuple[str, str]]]] = []
        stretch: list[dict[str, Any]] = []
        for event in events:
            user_id = event["userId"]
            if event["voided"]:
                self._voided[user_id] = event["eventId"]
            elif user_id in self._voided:
                parts.append((stretch, [(user_id, self._key(user_id))]))
                stretch = []
                del self._voided[user_id]
            stretch.append(event)
        return [*parts, (stretch, [])]

    def rest(self) -> list[tuple[str, str]]:
        return [(user_id, self._key(user_id)) for user_id in self._voided]

    def _key(self, user_id: str) -> str:
        return "import-" + hashlib.sha256(f"{user_id}\n{self._voided[user_id]}".encode()).hexdigest()[:32]


async def _ledger_id(client: httpx.AsyncClient) -> str:
    answer = await client.get("/readyz")
    try:
        ledger_id = answer.json()["ledgerId"]
    except (ValueError, KeyError, TypeError):
        ledger_id = None
    if ledger_id is None:
        raise Unavailable("internal", f"What answers at {client.base_url} is no Laurels that is ready.")
    return str(ledger_id)


def report(move: Move) -> None:
    for text in [*move.refused, *move.left]:
        typer.echo(text, err=True)
    typer.echo(move.summary, err=True)
