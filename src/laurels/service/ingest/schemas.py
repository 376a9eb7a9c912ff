"""The schemas of all pods, held in memory: which one an event is read with is decided here."""

import asyncio

from msgspec.structs import replace

from laurels.core import limits
from laurels.core.schemas import Schema, SchemaState, SchemaTerms, Where
from laurels.errors import Conflict, Invalid, LaurelsError, NotFound
from laurels.ports import Clock, Headers, Ledger, Letter
from laurels.service.access import unknown_pod
from laurels.service.ingest.transformer import Event, Transformed, Transformer, look_up, read_event
from laurels.service.registry import Registry


class Schemas:
    def __init__(self, ledger: Ledger, registry: Registry, clock: Clock) -> None:
        self._ledger = ledger
        self._registry = registry
        self._clock = clock
        self._pods: set[str] = set()
        # Of each pod, the last made first.
        self._of_pods: dict[str, list[Transformer]] = {}
        self._choices: dict[str, _Choice] = {}
        # So that a schema that was just made is not forgotten by a reload that began before.
        self._changing = asyncio.Lock()

    async def reload(self) -> None:
        """Read the schemas as they are in the ledger."""
        async with self._changing:
            await self._read()

    async def _read(self) -> None:
        self._pods = {pod.pod_id for pod in await self._ledger.pods()}
        held = {id_of(each.schema): each for of_pod in self._of_pods.values() for each in of_pod}
        fresh: dict[str, list[Transformer]] = {}
        for schema in await self._ledger.streams.schemas():
            known = held.get(id_of(schema))
            same = known is not None and known.schema == schema
            fresh.setdefault(schema.pod_id, []).append(known if known is not None and same else Transformer(schema))
        self._of_pods = fresh
        self._choices = {pod_id: _Choice(every) for pod_id, every in fresh.items()}

    def of_pod(self, pod_id: str) -> list[Schema]:
        """The last made first."""
        return [each.schema for each in self._of_pods.get(pod_id, [])]

    def find(self, pod_id: str, version: str) -> Schema:
        return self._find(pod_id, version).schema

    async def put(self, pod_id: str, version: str, terms: SchemaTerms, state: SchemaState) -> Schema:
        """Make a version, or replace it."""
        _check_paths(terms)
        now = self._clock.now_us()
        known = self._of_pods.get(pod_id, [])
        if len(known) >= limits.SCHEMAS and all(each.schema.version != version for each in known):
            raise Conflict(
                "too_many_schemas", f"Pod {pod_id!r} has {limits.SCHEMAS} schemas. Delete those that are retired."
            )
        return await self._change(Schema(pod_id, version, state, terms, now, now))

    async def set_state(self, pod_id: str, version: str, state: SchemaState) -> Schema:
        return await self._change(replace(self.find(pod_id, version), state=state, updated_at=self._clock.now_us()))

    async def _change(self, schema: Schema) -> Schema:
        async with self._changing:
            stored = await self._ledger.streams.put_schema(schema)
            await self._read()
        await self._registry.tell()
        return stored

    async def delete(self, pod_id: str, version: str) -> Schema:
        schema = self.find(pod_id, version)
        if schema.is_used:
            raise Conflict(
                "schema_in_use", f"Schema {version!r} is {schema.state}: retire it before you delete it.", field="state"
            )
        async with self._changing:
            await self._ledger.streams.delete_schema(pod_id, version)
            await self._read()
        await self._registry.tell()
        return schema

    # Which schema

    def read(self, pod_id: str, letter: Letter) -> tuple[Transformed | LaurelsError, str | None]:
        """What a letter of a pod says, or why it can't be read; and the version of the schema that was used."""
        version: str | None = None
        try:
            event = read_event(letter.value)
            transformer = self._choose(pod_id, event, letter.headers)
            version = transformer.schema.version
            return transformer.transform(event, letter), version
        except LaurelsError as error:
            return (error if pod_id in self._pods else unknown_pod(pod_id)), version

    def try_out(self, pod_id: str, letter: Letter, version: str | None) -> tuple[Transformed, str]:
        """What would become of a letter, with a schema that may still be a draft."""
        event = read_event(letter.value)
        chosen = self._choose(pod_id, event, letter.headers) if version is None else self._find(pod_id, version)
        return chosen.transform(event, letter), chosen.schema.version

    def _find(self, pod_id: str, version: str) -> Transformer:
        for each in self._of_pods.get(pod_id, []):
            if each.schema.version == version:
                return each
        raise NotFound("schema_not_found", f"Pod {pod_id!r} has no schema {version!r}.", field="schemaVersion")

    def _choose(self, pod_id: str, event: Event, headers: Headers) -> Transformer:
        choice = self._choices.get(pod_id)
        if choice is None:
            raise _nothing_active(pod_id)
        return choice.choose(pod_id, event, headers)


class _Choice:
    """The schemas of a pod, sorted by how an event is matched with them."""

    def __init__(self, every: list[Transformer]) -> None:
        # Whoever names a version that is not used any more is told so.
        self._by_name = [each for each in every if each.schema.terms.version_from is not None]
        nameless = [each for each in every if each.schema.terms.version_from is None]
        self._otherwise = next((each for each in nameless if each.schema.state is SchemaState.ACTIVE), None)
        self._needs_name = next((each for each in self._by_name if each.schema.is_used), None)

    def choose(self, pod_id: str, event: Event, headers: Headers) -> Transformer:
        """The one whose version the event names; if it names none, the newest active one that needs no name."""
        named: tuple[str, str] | None = None
        for each in self._by_name:
            where = each.schema.terms.version_from
            assert where is not None, "they were chosen for it"
            value = look_up(where, event, headers)
            if value is None or isinstance(value, dict | list | bool):
                continue
            if str(value) == each.schema.version and each.schema.is_used:
                return each
            named = named or (_place(where), str(value)[: limits.SCHEMA_VERSION_CHARS])
        if named is not None:
            field, value = named
            raise NotFound("schema_not_found", f"{field} names the schema {value!r}, which is not in use.", field=field)
        if self._otherwise is not None:
            return self._otherwise
        if self._needs_name is None or self._needs_name.schema.terms.version_from is None:
            raise _nothing_active(pod_id)
        field = _place(self._needs_name.schema.terms.version_from)
        raise Invalid("schema_mismatch", f"{field} (the schema's version) is missing.", field=field, rule="required")


def _place(where: Where) -> str:
    return where.field or f"header {where.header}"


def _nothing_active(pod_id: str) -> LaurelsError:
    return NotFound("schema_not_found", f"Pod {pod_id!r} has no schema that is active.", field="podId")


def id_of(schema: Schema) -> tuple[str, str]:
    return schema.pod_id, schema.version


def _check_paths(terms: SchemaTerms) -> None:
    """No path may lie within another, for what is mapped is taken out of the event."""
    mappings = terms.field_mappings
    paths = {
        "fieldMappings.userId": mappings.user_id,
        "fieldMappings.score": mappings.score,
        "fieldMappings.UUID": mappings.uuid,
        "fieldMappings.timestamp": mappings.timestamp,
        "fieldMappings.region": mappings.region,
        "eventIdFrom.field": terms.event_id_from and terms.event_id_from.field,
        "versionFrom.field": terms.version_from and terms.version_from.field,
    }
    for name, where in (("eventIdFrom", terms.event_id_from), ("versionFrom", terms.version_from)):
        if where is not None and (where.field is None) == (where.header is None):
            raise Invalid(
                "invalid_schema", f"{name} says either a field or a header.", field=name, rule="field or header"
            )
    given = [(name, path) for name, path in paths.items() if path]
    for name, path in given:
        if len(path.split(".")) > limits.PATH_PARTS:
            raise Invalid(
                "invalid_schema", f"{name} is deeper than {limits.PATH_PARTS} parts.", field=name, rule="<= 8 parts"
            )
        for other_name, other in given:
            if other.startswith(f"{path}."):
                raise Invalid(
                    "invalid_schema",
                    f"{other_name} ({other}) lies within {name} ({path}).",
                    field=other_name,
                    rule="not within another path",
                )
