"""The audit log."""

import msgspec

from laurels.core.instants import to_datetime
from laurels.http.board_parts import read_instant
from laurels.http.call import Call
from laurels.http.decode import decode_cursor, encode_cursor
from laurels.http.operating_answers import AuditAnswer, AuditedCall
from laurels.http.queries import AuditQuery
from laurels.ports import AuditEntry, AuditFilter


async def get_audit(call: Call[AuditQuery, None]) -> AuditAnswer:
    """List the administrative calls, newest first.

    These are the calls that change boards, periods, pods, keys, webhooks and schemas, that moderate, export or erase
    users, and that repair the server. Each has the key, the address, the time, and the fields that it changed, without
    secrets. Calls that were refused because the key does not allow them are not listed. `status` null: the server
    stopped during the call, which may have taken effect.
    """
    query = call.query
    wanted = AuditFilter(
        pod_id=query.pod_id,
        uuid=query.uuid,
        user_id=query.user_id,
        key_id=query.key_id,
        since=None if query.since is None else read_instant(query.since, "since"),
        until=None if query.until is None else read_instant(query.until, "until"),
        before_id=decode_cursor(query.cursor),
    )
    found = await call.laurels.audit_log.entries(wanted, query.limit)
    return AuditAnswer(
        entries=[_show(entry) for entry in found],
        next_cursor=encode_cursor(found[-1].entry_id) if len(found) == query.limit else None,
    )


def _show(entry: AuditEntry) -> AuditedCall:
    return AuditedCall(
        entry_id=str(entry.entry_id),
        at=to_datetime(entry.at),
        route=entry.route,
        pod_id=entry.pod_id,
        uuid=entry.uuid,
        user_id=entry.user_id,
        path=msgspec.json.decode(entry.path),
        key_id=entry.key_id,
        role=entry.role,
        address=entry.address or None,
        request_id=entry.request_id,
        before=None if entry.before is None else msgspec.json.decode(entry.before),
        after=None if entry.after is None else msgspec.json.decode(entry.after),
        status=entry.status,
        error=entry.error,
    )
