"""Templates of boards: what a new board of a pod is like, and which boards their first score creates."""

import asyncio

import structlog
from msgspec.structs import replace

from laurels.core.board import Board
from laurels.core.limits import TEMPLATES
from laurels.errors import Conflict, LaurelsError, NotFound
from laurels.ports import Clock, Ledger, Role, Scope, Template
from laurels.service.boards.boards import Boards
from laurels.service.boards.caller import Caller
from laurels.service.boards.registry import Registry

log = structlog.get_logger()

# In the name of a template's board: the UUID of the new board.
UUID_MARK = "{UUID}"
# The key that created boards which came into being by records from Kafka.
BY_KAFKA = "kafka"


class Templates:
    def __init__(self, ledger: Ledger, boards: Boards, registry: Registry, clock: Clock) -> None:
        self._ledger = ledger
        self._boards = boards
        self._registry = registry
        self._clock = clock
        # By pod and name.
        self._templates: dict[tuple[str, str], Template] = {}
        # Keeps a reload that began earlier from dropping a template that was just created.
        self._changing = asyncio.Lock()

    async def reload(self) -> None:
        """Load the templates from the ledger."""
        async with self._changing:
            await self._read()

    async def _read(self) -> None:
        self._templates = {(each.pod_id, each.name): each for each in await self._ledger.templates()}

    def of_pod(self, pod_id: str) -> list[Template]:
        """Return the templates of a pod, by name."""
        return [each for (owner, _), each in sorted(self._templates.items()) if owner == pod_id]

    def find(self, pod_id: str, name: str) -> Template:
        template = self._templates.get((pod_id, name))
        if template is None:
            raise NotFound("template_not_found", f"Pod {pod_id!r} has no template {name!r}.", field="templateName")
        return template

    async def put(self, pod_id: str, name: str, prefix: str | None, board: Board) -> Template:
        """Create or replace a template. Boards that exist do not change."""
        if (pod_id, name) not in self._templates and len(self.of_pod(pod_id)) >= TEMPLATES:
            raise Conflict(
                "too_many_templates", f"Pod {pod_id!r} has {TEMPLATES} templates, the maximum. Delete some first."
            )
        self._boards.check(board)
        now = self._clock.now_us()
        async with self._changing:
            stored = await self._ledger.put_template(Template(pod_id, name, prefix, board, now, now))
            await self._read()
        await self._registry.tell()
        return stored

    async def delete(self, pod_id: str, name: str) -> Template:
        template = self.find(pod_id, name)
        async with self._changing:
            await self._ledger.delete_template(pod_id, name)
            await self._read()
        await self._registry.tell()
        return template

    async def create(self, template: Template, uuid: str, name: str | None, created_by: str | None) -> Board:
        """Create a board from a template. Idempotent, as Boards.create is."""
        named = (template.board.name if name is None else name).replace(UUID_MARK, uuid)
        board = replace(template.board, uuid=uuid, pod_id=template.pod_id, name=named, created_by=created_by)
        return await self._boards.create(board, None)

    async def create_for_score(self, caller: Caller, uuid: str) -> Board | None:
        """Create the board that a score names, if a template of the caller's pod has a prefix for it; else None."""
        if caller.role not in {Role.ADMIN, Role.SERVER} or Scope.SCORES_WRITE not in caller.scopes:
            return None
        found = self._for_uuid(uuid, None if caller.is_admin else caller.pod_id)
        return None if found is None else await self._create_first(found, uuid, caller.key_id)

    async def create_for_record(self, pod_id: str, uuid: str) -> Board | None:
        """Create the board that a record of a pod names, if a template of the pod has a prefix for it; else None."""
        found = self._for_uuid(uuid, pod_id)
        return None if found is None else await self._create_first(found, uuid, BY_KAFKA)

    async def _create_first(self, template: Template, uuid: str, created_by: str | None) -> Board:
        try:
            return await self.create(template, uuid, None, created_by)
        except LaurelsError as error:
            error.message = f"There is no board {uuid!r}, and its template can't be used: {error.message}"
            raise

    def _for_uuid(self, uuid: str, pod_id: str | None) -> Template | None:
        """Return the template with the longest prefix of a UUID, of a pod or (None) of any pod.

        If templates of several pods have it, nobody can tell whose board it would be.
        """
        found = [
            each
            for each in self._templates.values()
            if each.prefix is not None and uuid.startswith(each.prefix) and pod_id in {None, each.pod_id}
        ]
        longest = max((len(each.prefix or "") for each in found), default=0)
        best = [each for each in found if len(each.prefix or "") == longest]
        return min(best, key=lambda each: each.name) if len({each.pod_id for each in best}) == 1 else None
