"""`laurels import --from`: everything but past seasons of another Laurels, while it runs: pods, keys, schemas, people,
boards and all events. (`laurels migrate --from` takes all of it, of one that does not run.)

An event keeps its id, so it counts once however often this is repeated; repeat it to bring over what came meanwhile.
"""

import hashlib
from collections.abc import Coroutine
from typing import Any
from urllib.parse import quote

import typer

from laurels.cli.connect import Peer, call
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
SCHEMA = ("fieldMappings", "timestampFormat", "scoreType", "eventIdFrom", "versionFrom", "state")
PROFILE = ("userId", "displayName", "avatarUrl", "region", "circles")


class Move:
    """`last`: the other one takes no more scores. Only then rewards are brought over: else a period that ends on both
    would be rewarded on both.
    """

    def __init__(self, source: Peer, target: Peer, *, last: bool) -> None:
        self._source = source
        self._target = target
        self._last = last
        self.pods = self.keys = self.people = self.boards = self.accepted = self.duplicates = 0
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
        made = [board for board in boards if await self._succeeds(board, self._create(_path(board), board))]
        # Before the events, whose users are then where they are there.
        for pod_id in sorted(wanted):
            await self._people(pod_id, {board["UUID"] for board in made})
        for board in made:
            await self._succeeds(board, self._board(board))

    async def _succeeds(self, board: dict[str, Any], work: Coroutine[Any, Any, Any]) -> bool:
        """Do something with a board. One that can't be brought over keeps no other away."""
        try:
            await work
        except (Conflict, Invalid, NotFound) as error:
            self.refused.append(f"{board['UUID']}: {error.message}")
            return False
        return True

    async def _people(self, pod_id: str, boards: set[str]) -> None:
        params: dict[str, Any] = {"podId": pod_id, "limit": PAGE}
        while True:
            page = await call(self._source, "GET", "/api/v1/users", params=params)
            users = [{name: user[name] for name in PROFILE} for user in page["users"]]
            if users:
                await call(self._target, "POST", "/api/v1/users", params={"podId": pod_id}, json={"users": users})
            for user in page["users"]:
                await self._hide(pod_id, user, boards)
            self.people += len(users)
            if page["nextCursor"] is None:
                return
            params["cursor"] = page["nextCursor"]

    async def _hide(self, pod_id: str, user: dict[str, Any], boards: set[str]) -> None:
        person = f"users/{quote(user['userId'], safe='')}/hidden"
        for hidden in user["hidden"]:
            path = f"/api/v1/{person}" if hidden["UUID"] is None else f"{_path(hidden)}/{person}"
            params = {"podId": pod_id} if hidden["UUID"] is None else {}
            if hidden["UUID"] is None or hidden["UUID"] in boards:
                body = {"shadow": hidden["shadow"], "reason": "as it was where it came from"}
                await call(self._target, "PUT", path, params=params, json=body)

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
        await self._schemas(pod["podId"])
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

    async def _schemas(self, pod_id: str) -> None:
        path = f"/api/v1/pods/{quote(pod_id, safe='')}/schemas"
        # In the order in which they were made, for the newest is the one that is used.
        for schema in reversed((await call(self._source, "GET", path))["schemas"]):
            body = {name: schema[name] for name in SCHEMA}
            await call(self._target, "PUT", f"{path}/{quote(schema['schemaVersion'], safe='')}", json=body)

    async def _board(self, board: dict[str, Any]) -> None:
        path = _path(board)
        there = await call(self._target, "GET", path)
        self.boards += 1
        if there["status"] in CLOSED:
            await self._check_complete(path, board)
            return
        await self._events(path, board)
        await self._tell_what_stays(path, board)
        bounds = {name: board[name] for name in BOUNDS if board[name] not in (None, [])}
        if board["status"] in CLOSED and (board["rewards"] or there["rewards"]):
            # They were granted there, and perhaps handed out: here nobody would know.
            bounds["rewards"] = []
            self.left.append(f"{board['UUID']}: it has ended, and its rewards stay there.")
        elif board["rewards"] and not self._last:
            del bounds["rewards"]
            self.left.append(f"{board['UUID']}: its rewards are brought over by the last run, with --last.")
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
                "Their events are here, and count in the windows that still take them. To have all of it here, stop "
                "the other one and use `laurels migrate --from`."
            )
        if board["prunedBefore"] is not None:
            self.left.append(
                f"{board['UUID']}: events before {board['prunedBefore']} were pruned there. What they added up to "
                "can't be brought over: scores may be lower here."
            )

    async def _create(self, path: str, board: dict[str, Any]) -> dict[str, Any]:
        definition = {name: board[name] for name in DEFINITION}
        if board["status"] == "SCHEDULED":
            # It has no events yet, and once it is active it can't be scheduled any more.
            definition |= {name: board[name] for name in ("startTime", "endTime")}
        try:
            created: dict[str, Any] = await call(self._target, "POST", "/api/v1/leaderboards", json=definition)
        except Conflict:
            created = await call(self._target, "GET", path)
            fixed = ("podId", "rule", "order", "ties", "windows", "segments")
            if any(created[name] != board[name] for name in fixed):
                raise
        return created

    async def _events(self, path: str, board: dict[str, Any]) -> None:
        params: dict[str, Any] = {"limit": PAGE, "voided": True}
        done, total = 0, None
        with show_progress(f"Importing {board['UUID']}") as advance:
            while True:
                page = await call(self._source, "GET", path + "/events", params=params, tries=PATIENT)
                total = page["totalEvents"] if total is None else total
                await self._send(path, page["events"])
                await self._void(path, [event["eventId"] for event in page["events"] if event["voided"]])
                done += len(page["events"])
                advance(done, max(total or 0, done))
                if page["nextCursor"] is None:
                    break
                params["cursor"] = page["nextCursor"]

    async def _send(self, path: str, events: list[dict[str, Any]]) -> None:
        if not events:
            return
        items = [
            {name: value for name, value in event.items() if name != "voided" and value is not None} for event in events
        ]
        answer = await call(self._target, "POST", path + "/scores", json={"scores": items}, tries=PATIENT)
        for event, result in zip(events, answer["results"], strict=True):
            # What comes after it (voids, bounds) counts on it.
            if result["status"] == "spooled":
                raise Unavailable(
                    "ledger_unavailable",
                    "The ledger there can't be reached. Repeat it when it can: nothing counts twice.",
                )
            if result["status"] == "refused":
                self.refused.append(
                    f"{path.rpartition('/')[2]}, event {event['eventId']}: {result['problem']['detail']}"
                )
            elif result["status"] == "duplicate":
                self.duplicates += 1
            else:
                self.accepted += 1

    async def _void(self, path: str, event_ids: list[str]) -> None:
        """Those that don't count there. The key follows from the events, so that a repetition is the same act."""
        if not event_ids:
            return
        key = "import-" + hashlib.sha256("\n".join(event_ids).encode()).hexdigest()[:32]
        body = {"eventIds": event_ids, "reason": "as it was where it came from"}
        headers = {"Idempotency-Key": key}
        await call(self._target, "POST", path + "/void", json=body, headers=headers, tries=PATIENT)

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
            f"Pods: {self.pods}, keys: {self.keys}, people: {self.people}, boards: {self.boards}. "
            f"Events: {self.accepted} accepted, {self.duplicates} already there, {len(self.refused)} refused."
        )


def _path(board: dict[str, Any]) -> str:
    return f"/api/v1/leaderboards/{quote(board['UUID'], safe='')}"


async def _ledger_id(client: Peer) -> str:
    answer = await client.http.get("/readyz")
    try:
        ledger_id = answer.json()["ledgerId"]
    except (ValueError, KeyError, TypeError):
        ledger_id = None
    if ledger_id is None:
        raise Unavailable("internal", f"What answers at {client.url} is no Laurels that is ready.")
    return str(ledger_id)


def report(move: Move) -> None:
    for text in [*move.refused, *move.left]:
        typer.echo(text, err=True)
    typer.echo(move.summary, err=True)
