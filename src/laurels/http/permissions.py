"""Who may make a call, as the docs say it. The guard and the traits of a route decide; this only describes them."""

from typing import NamedTuple

from laurels.http import guards
from laurels.http.call import Endpoint, Guard

YES, NO, OWN = "yes", "", "own data"
PUBLIC = "public boards"
OWN_SCORES = "own scores, if `playersMayWrite`"


class Permissions(NamedTuple):
    """Who may make a call. Every role is limited to its pod; a public board can be read by everybody."""

    admin: str
    server: str
    # The scope that a server key needs.
    scope: str
    client: str
    player: str
    nobody: str


_READERS = (YES, YES, YES, PUBLIC)
_SERVERS = (YES, NO, NO, NO)
# The server, client and player columns, and the column for callers without a key.
_GUARDS: dict[Guard, tuple[str, str, str, str]] = {
    guards.anyone: (YES, YES, YES, YES),
    guards.known: (YES, YES, YES, PUBLIC),
    guards.key: (YES, YES, YES, NO),
    guards.writer: _SERVERS,
    guards.admin: (NO, NO, NO, NO),
    guards.board_reader: _READERS,
    guards.default_board_reader: _READERS,
    guards.board_pod_reader: (YES, YES, YES, NO),
    guards.board_writer: _SERVERS,
    guards.board_admin: (NO, NO, NO, NO),
    guards.default_board_writer: _SERVERS,
    guards.score_writer: (YES, NO, OWN_SCORES, NO),
}


def permissions_of(endpoint: Endpoint) -> Permissions:
    server, client, player, nobody = _GUARDS[endpoint.guard]
    if endpoint.traits.personal:
        client, player = NO, OWN
    scope = f"`{endpoint.traits.scope.value}`" if server and endpoint.traits.scope is not None else ""
    return Permissions(YES, server, scope, client, player, nobody)
