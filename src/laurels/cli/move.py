"""`laurels import --from`: copy pods, keys, schemas, profiles, boards and all events from another running server.

Past periods are not copied. `laurels migrate --from` copies everything, from a data folder that no server uses.

Events keep their ids, so they count once even if the import is repeated. Repeat it to copy what arrived in between.
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
# The fields that define a board. The server derives the other fields of its response.
DEFINITION = (
    "UUID", "podId", "name", "rule", "order", "ties", "subscore", "scoreTtlSeconds", "operations",
    "capacity", "windows", "segments", "public",
    "publicFields", "playersMayWrite", "playerWritesPerMinute", "metadata",
    "graceSeconds", "flushMs", "shards", "rankOnWrite",
)  # fmt: skip
# Set after the events are imported, because older events may lie outside these bounds.
BOUNDS = ("minScore", "maxScore", "startTime", "endTime", "rewards", "keepEventsDays", "keepPeriodsDays", "review")
CLOSED = {"ENDED", "ARCHIVED"}
SCHEMA = ("fieldMappings", "timestampFormat", "scoreType", "eventIdFrom", "versionFrom", "state")
PROFILE = ("userId", "displayName", "avatarUrl", "region", "circles", "attributes")


class Move:
    """An import from a source server into a target server.

    `last`: the source accepts no more scores. Only then are rewards copied; otherwise a period that ends on both
    servers would be rewarded on both.
    """

    def __init__(self, source: Peer, target: Peer, *, last: bool) -> None:
        self._source = source
        self._target = target
        self._last = last
        self.pods = self.keys = self.profiles = self.boards = self.accepted = self.duplicates = 0
        self.refused: list[str] = []
        # Messages about what was not copied.
        self.left: list[str] = []

    async def everything(self, only_board: str | None) -> None:
        if await _ledger_id(self._source) == await _ledger_id(self._target):
            raise Invalid(
                "wrong_format",
                "--from names the server that the import writes to. Name the target server with --url and --key.",
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
        # Before the events, so that their users are ranked in the same segments as on the source.
        for pod_id in sorted(wanted):
            await self._profiles(pod_id, {board["UUID"] for board in made})
        for board in made:
            await self._succeeds(board, self._board(board))

    async def _succeeds(self, board: dict[str, Any], work: Coroutine[Any, Any, Any]) -> bool:
        """Await work on a board and return whether it succeeded.

        A board that can't be copied is added to `refused` and does not stop the others.
        """
        try:
            await work
        except (Conflict, Invalid, NotFound) as error:
            self.refused.append(f"{board['UUID']}: {error.message}")
            return False
        return True

    async def _profiles(self, pod_id: str, boards: set[str]) -> None:
        params: dict[str, Any] = {"podId": pod_id, "limit": PAGE}
        while True:
            page = await call(self._source, "GET", "/api/v1/users", params=params)
            # A server of an earlier release has no attributes.
            users = [{name: user[name] for name in PROFILE if name in user} for user in page["users"]]
            if users:
                await call(self._target, "POST", "/api/v1/users", params={"podId": pod_id}, json={"users": users})
            for user in page["users"]:
                await self._hide(pod_id, user, boards)
            self.profiles += len(users)
            if page["nextCursor"] is None:
                return
            params["cursor"] = page["nextCursor"]

    async def _hide(self, pod_id: str, user: dict[str, Any], boards: set[str]) -> None:
        person = f"users/{quote(user['userId'], safe='')}/hidden"
        for hidden in user["hidden"]:
            path = f"/api/v1/{person}" if hidden["UUID"] is None else f"{_path(hidden)}/{person}"
            params = {"podId": pod_id} if hidden["UUID"] is None else {}
            if hidden["UUID"] is None or hidden["UUID"] in boards:
                body = {"shadow": hidden["shadow"], "reason": "hidden on the server it was imported from"}
                await call(self._target, "PUT", path, params=params, json=body)

    async def _boards(self) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        # The API lists archived boards only on request.
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
            body = {name: key.get(name) for name in ("role", "label", "keyId", "digest", "expiresAt")}
            if key["role"] == "server":
                body["scopes"] = key.get("scopes")
            try:
                await call(self._target, "POST", path, json=body)
                self.keys += 1
            except Conflict:
                typer.echo(f"Key {key['keyId']} was revoked on the target server and stays revoked.", err=True)

    async def _schemas(self, pod_id: str) -> None:
        path = f"/api/v1/pods/{quote(pod_id, safe='')}/schemas"
        # Oldest first, because the schema that was created last is the one in use.
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
        bounds = {name: board[name] for name in BOUNDS if board.get(name) not in (None, [])}
        if board["status"] in CLOSED and (board["rewards"] or there["rewards"]):
            # The source has granted them and may have handed them out, which the target can't know.
            bounds["rewards"] = []
            self.left.append(f"{board['UUID']}: the board has ended, so its rewards stay on the source server.")
        elif board["rewards"] and not self._last:
            del bounds["rewards"]
            self.left.append(
                f"{board['UUID']}: its rewards are not copied yet. The last run, with --last, copies them."
            )
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
                f"{board['UUID']}: {past} {many}past periods stay on the source server, with their final ranks and "
                "rewards. Their events are copied, and count in the windows that still accept them. To copy "
                "everything, stop the source server and use `laurels migrate --from`."
            )
        if board["prunedBefore"] is not None:
            self.left.append(
                f"{board['UUID']}: the source server has pruned the events before {board['prunedBefore']}. Their sum "
                "can't be copied, so scores may be lower on the target server."
            )

    async def _create(self, path: str, board: dict[str, Any]) -> dict[str, Any]:
        # A server of an earlier release lacks some fields.
        definition = {name: board[name] for name in DEFINITION if name in board}
        if board["status"] == "SCHEDULED":
            # A scheduled board has no events yet, and an active board can't become scheduled again.
            definition |= {name: board[name] for name in ("startTime", "endTime")}
        try:
            created: dict[str, Any] = await call(self._target, "POST", "/api/v1/leaderboards", json=definition)
        except Conflict:
            created = await call(self._target, "GET", path)
            fixed = ("podId", "rule", "order", "ties", "windows", "segments", "subscore", "operations")
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
            # The next steps (voids, bounds) need the event to be in the ledger.
            if result["status"] == "spooled":
                raise Unavailable(
                    "ledger_unavailable",
                    "The target server's ledger can't be reached. Repeat the import when it can: nothing counts twice.",
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
        """Void events on the target that are voided on the source.

        The idempotency key is derived from the events, so that a repeated import is the same moderation action.
        """
        if not event_ids:
            return
        key = "import-" + hashlib.sha256("\n".join(event_ids).encode()).hexdigest()[:32]
        body = {"eventIds": event_ids, "reason": "voided on the server it was imported from"}
        headers = {"Idempotency-Key": key}
        await call(self._target, "POST", path + "/void", json=body, headers=headers, tries=PATIENT)

    async def _check_complete(self, path: str, board: dict[str, Any]) -> None:
        counts = [
            (await call(client, "GET", path + "/events", params={"limit": 1}))["totalEvents"]
            for client in (self._source, self._target)
        ]
        if counts[0] != counts[1]:
            self.refused.append(
                f"{board['UUID']}: the board has ended on the target server with {counts[1]} of {counts[0]} events."
            )

    @property
    def summary(self) -> str:
        return (
            f"Pods: {self.pods}, keys: {self.keys}, profiles: {self.profiles}, boards: {self.boards}. "
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
        raise Unavailable("internal", f"{client.url} is not a Laurels server, or is not ready.")
    return str(ledger_id)


def report(move: Move) -> None:
    for text in [*move.refused, *move.left]:
        typer.echo(text, err=True)
    typer.echo(move.summary, err=True)
