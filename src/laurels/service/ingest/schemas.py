"""The schemas of all pods, held in memory: which one an event is read with is decided here."""

import asyncio

from laurels.core import limits
from laurels.core.schemas import Schema, SchemaState, SchemaTerms, Where
from laurels.errors import Conflict, Invalid, LaurelsError, Malformed, NotFound
from laurels.ports import Clock, Headers, Ledger, Letter
from laurels.service.access import unknown_pod
from laurels.service.ingest.transformer import Event, Transformed, Transformer, look_up, read_event
from laurels.service.registry import Registry

# What the headers that we add to dead letters begin with.
RESERVED = "laurels-"


class Schemas:
    def __init__(self, ledger: Ledger, registry: Registry, clock: Clock) -> None:
        self._ledger = ledger
        self._streams = ledger.streams
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
        held = {_key(each.schema): each for of_pod in self._of_pods.values() for each in of_pod}
        fresh: dict[str, list[Transformer]] = {}
        for schema in await self._streams.schemas():
            known = held.get(_key(schema))
            same = known is not None and known.schema == schema
            fresh.setdefault(schema.pod_id, []).append(known if known is not None and same else Transformer(schema))
        self._of_pods = fresh
        self._choices = {pod_id: _Choice(every) for pod_id, every in fresh.items()}

    def of_pod(self, pod_id: str) -> list[Schema]:
        """The last made first."""
        return [each.schema for each in self._of_pods.get(pod_id, [])]

    def find(self, pod_id: str, version: str) -> Schema:
        return self._find(pod_id, version).schema

    async def put(self, pod_id: str, version: str, terms: SchemaTerms, state: SchemaState | None) -> Schema:
        """Make a version, or replace it. `state` None: as it is, or a draft."""
        _check_paths(terms)
        now = self._clock.now_us()
        known = self._of_pods.get(pod_id, [])
        if len(known) >= limits.SCHEMAS and all(each.schema.version != version for each in known):
            raise Conflict(
                "too_many_schemas", f"Pod {pod_id!r} has {limits.SCHEMAS} schemas. Delete those that are retired."
            )
        schema = Schema(pod_id, version, state or SchemaState.DRAFT, terms, now, now)
        async with self._changing:
            stored = await self._streams.put_schema(schema, keep_state=state is None)
            await self._read()
        await self._registry.tell()
        return stored

    async def set_state(self, pod_id: str, version: str, state: SchemaState) -> Schema:
        async with self._changing:
            stored = await self._streams.set_schema_state(pod_id, version, state, self._clock.now_us())
            await self._read()
        await self._registry.tell()
        if stored is None:
            raise _unknown(pod_id, version)
        return stored

    async def delete(self, pod_id: str, version: str) -> Schema:
        """Only what is not used."""
        schema = self.find(pod_id, version)
        async with self._changing:
            is_gone = await self._streams.delete_schema(pod_id, version)
            await self._read()
        await self._registry.tell()
        if not is_gone:
            raise Conflict(
                "schema_in_use",
                f"Events are read with schema {version!r}: retire it before you delete it.",
                field="state",
            )
        return schema

    # Which schema

    def read(self, pod_id: str, letter: Letter) -> tuple[Transformed | LaurelsError, str | None]:
        """What a letter of a pod says, or why it can't be read; and the version of the schema that was used."""
        version: str | None = None
        try:
            if letter.damaged:
                raise Malformed(
                    "invalid_headers",
                    "A header of the record has a name that is not UTF-8, so none of them can be read.",
                    rule="UTF-8",
                )
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
        raise _unknown(pod_id, version)

    def _choose(self, pod_id: str, event: Event, headers: Headers) -> Transformer:
        choice = self._choices.get(pod_id)
        if choice is None:
            raise _nothing_active(pod_id)
        return choice.choose(pod_id, event, headers)


class _Choice:
    """The schemas of a pod, sorted by how an event is matched with them."""

    def __init__(self, every: list[Transformer]) -> None:
        used = [each for each in every if each.schema.is_used]
        self._used = {each.schema.version: each for each in used}
        # The last made first, and active ones before those that are on their way out.
        used.sort(key=lambda each: each.schema.state is not SchemaState.ACTIVE)
        self._otherwise = next((each for each in used if each.schema.terms.version_from is None), None)
        self._places = list(dict.fromkeys(each.schema.terms.version_from for each in used))
        # Whoever names one that is not used is told so.
        self._others = [each.schema for each in every if not each.schema.is_used]

    def choose(self, pod_id: str, event: Event, headers: Headers) -> Transformer:
        """The one whose version the event names; if it names none, the newest active one that needs no name."""
        missing: str | None = None
        for where in self._places:
            if where is None:
                continue
            version = _version(look_up(where, event, headers))
            if version is None:
                missing = missing or _place(where)
            elif version in self._used:
                return self._used[version]
            else:
                raise self._not_used(_place(where), version)
        for schema in self._others:
            where = schema.terms.version_from
            if where is not None and _version(look_up(where, event, headers)) == schema.version:
                raise self._not_used(_place(where), schema.version)
        if self._otherwise is not None:
            return self._otherwise
        if missing is None:
            raise _nothing_active(pod_id)
        raise Invalid(
            "schema_mismatch", f"{missing} (the schema's version) is missing.", field=missing, rule="required"
        )

    def _not_used(self, field: str, version: str) -> LaurelsError:
        state = next(
            (f"is not in use: {each.state}" for each in self._others if each.version == version), "is not there"
        )
        in_use = ", ".join(self._used) or "none"
        return NotFound(
            "schema_not_found",
            f"{field} names the schema {version[: limits.SCHEMA_VERSION_CHARS]!r}, which {state}. In use: {in_use}.",
            field=field,
        )


def _version(value: object) -> str | None:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _place(where: Where) -> str:
    return where.field or f"header {where.header}"


def _unknown(pod_id: str, version: str) -> LaurelsError:
    return NotFound("schema_not_found", f"Pod {pod_id!r} has no schema {version!r}.", field="schemaVersion")


def _nothing_active(pod_id: str) -> LaurelsError:
    return NotFound("schema_not_found", f"Pod {pod_id!r} has no schema that is active.", field="podId")


def _key(schema: Schema) -> tuple[str, str]:
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
        if where is not None and (where.header or "").startswith(RESERVED):
            raise Invalid(
                "invalid_schema",
                f"{name}: headers that begin with {RESERVED} are ours.",
                field=name,
                rule="another name",
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
