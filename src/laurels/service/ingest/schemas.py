"""The schemas of all pods, held in memory, and the choice of a schema for each event."""

import asyncio

from laurels.core import limits
from laurels.core.schemas import FieldSource, Schema, SchemaState, SchemaTerms
from laurels.errors import Conflict, Invalid, LaurelsError, Malformed, NotFound
from laurels.ports import Clock, Headers, KafkaRecord, Ledger
from laurels.service.boards.caller import unknown_pod
from laurels.service.boards.registry import Registry
from laurels.service.ingest.transformer import Event, Transformed, Transformer, look_up, read_event

# Prefix of the headers that Laurels adds to dead letters.
RESERVED = "laurels-"


class Schemas:
    def __init__(self, ledger: Ledger, registry: Registry, clock: Clock) -> None:
        self._ledger = ledger
        self._streams = ledger.streams
        self._registry = registry
        self._clock = clock
        self._pods: set[str] = set()
        # By pod, newest first.
        self._of_pods: dict[str, list[Transformer]] = {}
        self._choices: dict[str, _Choice] = {}
        # Keeps a reload that began earlier from dropping a schema that was just created.
        self._changing = asyncio.Lock()

    async def reload(self) -> None:
        """Load the schemas from the ledger."""
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
        """Return the schemas of a pod, newest first."""
        return [each.schema for each in self._of_pods.get(pod_id, [])]

    def find(self, pod_id: str, version: str) -> Schema:
        return self._find(pod_id, version).schema

    async def put(self, pod_id: str, version: str, terms: SchemaTerms, state: SchemaState | None) -> Schema:
        """Create or replace a version of a pod's schema.

        If `state` is None an existing version keeps its state and a new one is a draft. Raises Invalid if the paths
        contradict each other, and Conflict if the pod has too many schemas.
        """
        _check_paths(terms)
        now = self._clock.now_us()
        known = self._of_pods.get(pod_id, [])
        if len(known) >= limits.SCHEMAS and all(each.schema.version != version for each in known):
            raise Conflict(
                "too_many_schemas", f"Pod {pod_id!r} has {limits.SCHEMAS} schemas, the maximum. Delete retired ones."
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
        """Delete a schema that is a draft or retired, or raise Conflict if it is in use."""
        schema = self.find(pod_id, version)
        async with self._changing:
            is_gone = await self._streams.delete_schema(pod_id, version)
            await self._read()
        await self._registry.tell()
        if not is_gone:
            raise Conflict(
                "schema_in_use",
                f"Schema {version!r} is in use. Retire it before you delete it.",
                field="state",
            )
        return schema

    # Reading events

    def read(self, pod_id: str, record: KafkaRecord) -> tuple[Transformed | LaurelsError, str | None]:
        """Return the score in a record, or why it can't be read, and the version of the schema that was used."""
        version: str | None = None
        try:
            if record.damaged:
                raise Malformed(
                    "invalid_headers",
                    "The record has a header whose name is not UTF-8, so its headers can't be read.",
                    rule="UTF-8",
                )
            event = read_event(record.value)
            transformer = self._choose(pod_id, event, record.headers)
            version = transformer.schema.version
            return transformer.transform(event, record), version
        except LaurelsError as error:
            return (error if pod_id in self._pods else unknown_pod(pod_id)), version

    def try_out(self, pod_id: str, record: KafkaRecord, version: str | None) -> tuple[Transformed, str]:
        """Transform a record without counting it, and return the result with the version that was used.

        `version` may be a draft. If it is None, the schema is chosen as for any other record.
        """
        event = read_event(record.value)
        chosen = self._choose(pod_id, event, record.headers) if version is None else self._find(pod_id, version)
        return chosen.transform(event, record), chosen.schema.version

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
    """The schemas of a pod, arranged for matching events with them."""

    def __init__(self, every: list[Transformer]) -> None:
        used = [each for each in every if each.schema.is_used]
        self._used = {each.schema.version: each for each in used}
        # Active schemas before deprecated ones, each newest first.
        used.sort(key=lambda each: each.schema.state is not SchemaState.ACTIVE)
        self._otherwise = next((each for each in used if each.schema.terms.version_from is None), None)
        self._places = list(dict.fromkeys(each.schema.terms.version_from for each in used))
        # For the error if an event names a schema that is not in use.
        self._others = [each.schema for each in every if not each.schema.is_used]

    def choose(self, pod_id: str, event: Event, headers: Headers) -> Transformer:
        """Return the schema whose version the event names, or else the default schema.

        The default is the newest schema without `versionFrom`, active ones first. Raises NotFound if the event names a
        schema that is not in use or if there is none, and Invalid if the event has to name a version and does not.
        """
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
        raise Invalid("schema_mismatch", f"{missing} (schema version) is missing.", field=missing, rule="required")

    def _not_used(self, field: str, version: str) -> LaurelsError:
        state = next(
            (f"is not in use (state: {each.state})" for each in self._others if each.version == version),
            "does not exist",
        )
        in_use = ", ".join(self._used) or "none"
        return NotFound(
            "schema_not_found",
            f"{field} names the schema {version[: limits.SCHEMA_VERSION_CHARS]!r}, which {state}. In use: {in_use}.",
            field=field,
        )


def _version(value: object) -> str | None:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _place(where: FieldSource) -> str:
    return where.field or f"header {where.header}"


def _unknown(pod_id: str, version: str) -> LaurelsError:
    return NotFound("schema_not_found", f"Pod {pod_id!r} has no schema {version!r}.", field="schemaVersion")


def _nothing_active(pod_id: str) -> LaurelsError:
    return NotFound("schema_not_found", f"Pod {pod_id!r} has no active schema.", field="podId")


def _key(schema: Schema) -> tuple[str, str]:
    return schema.pod_id, schema.version


def _check_paths(terms: SchemaTerms) -> None:
    """Raise Invalid if a source or a path of a schema is not usable.

    No path may lie within another, because mapped fields are removed from the event.
    """
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
                "invalid_schema", f"{name} must have either a field or a header.", field=name, rule="field or header"
            )
        if where is not None and (where.header or "").startswith(RESERVED):
            raise Invalid(
                "invalid_schema",
                f"{name}: headers that start with {RESERVED} are reserved. Use another name.",
                field=name,
                rule="another name",
            )
    given = [(name, path) for name, path in paths.items() if path]
    for name, path in given:
        if len(path.split(".")) > limits.PATH_PARTS:
            raise Invalid(
                "invalid_schema", f"{name} has more than {limits.PATH_PARTS} parts.", field=name, rule="<= 8 parts"
            )
        for other_name, other in given:
            if other.startswith(f"{path}."):
                raise Invalid(
                    "invalid_schema",
                    f"{other_name} ({other}) lies within {name} ({path}). Paths must not overlap.",
                    field=other_name,
                    rule="not within another path",
                )
