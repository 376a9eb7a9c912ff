"""Stores administrative calls in the audit log: the routes with `audited` in the route table."""

import functools
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from laurels.errors import LaurelsError
from laurels.http.call import Call, Handler, status_of
from laurels.http.problems import problem_of
from laurels.http.sight import request_id
from laurels.ports import AuditEntry

INTERNAL = 500
# Of each name in the path.
NAME_CHARS = 256


def audited(handler: Handler, status: int, which: bool | Callable[[Call[Any, Any]], bool]) -> Handler:
    """Return a handler that also stores its calls.

    `status`: that of a plain answer. `which`: tells which calls are stored; True: all.
    """

    @functools.wraps(handler)
    async def run(call: Call[Any, Any]) -> Any:
        if callable(which) and not which(call):
            return await handler(call)
        audit_log = call.laurels.audit_log
        entry = await audit_log.begin(_entry(call))
        try:
            answer = await handler(call)
        except LaurelsError as error:
            await audit_log.finish(_outcome(call, entry, problem_of(error).status, error.code))
            raise
        except Exception:
            await audit_log.finish(_outcome(call, entry, INTERNAL, "internal"))
            raise
        await audit_log.finish(_outcome(call, entry, status_of(answer, status), None))
        return answer

    return run


def _entry(call: Call[Any, Any]) -> AuditEntry:
    """Return the entry of a call. The log fills in the id and the time."""
    path = {name: call.path(name)[:NAME_CHARS] for name in call.path_parts}
    body = call.body_or_none
    uuid = path.pop("UUID", None) or getattr(body, "uuid", None)
    user_id = call.user_id if path.pop("userId", None) is not None else getattr(body, "user_id", None)
    caller = call.caller
    assert caller.role is not None, "administrative calls need a key"
    # The same check as in the handlers: nobody writes into the log of another pod, and every entry about a user has a
    # pod, so that an erasure finds it.
    named = path.pop("podId", None) or getattr(body, "pod_id", None)
    if hasattr(call.query, "pod_id"):
        named = caller.require_pod(call.query.pod_id)
    elif named is not None:
        caller.require_pod(named)
    return AuditEntry(
        entry_id=0,
        at=0,
        pod_id=named or call.pod_id,
        uuid=uuid,
        user_id=user_id,
        key_id=caller.key_id,
        role=caller.role.value,
        address=call.address,
        request_id=request_id(call.headers),
        route=call.route,
        path=msgspec.json.encode(path).decode(),
    )


def _outcome(call: Call[Any, Any], entry: AuditEntry, status: int, error: str | None) -> AuditEntry:
    before, after = _changed(call.changed_from, call.changed_to)
    uuid = entry.uuid or (after or {}).get("UUID")
    return replace(entry, uuid=uuid, before=_json(before), after=_json(after), status=status, error=error)


def _changed(before: Any, after: Any) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the fields that differ; all of them if there is only one state."""
    old, new = (None if state is None else msgspec.to_builtins(state) for state in (before, after))
    if old is None or new is None:
        return old, new
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return tuple({name: state[name] for name in names if name in state} for state in (old, new))  # type: ignore[return-value]


def _json(state: dict[str, Any] | None) -> str | None:
    return None if state is None else msgspec.json.encode(state).decode()
