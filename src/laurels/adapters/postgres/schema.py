"""The schema of the PostgreSQL ledger: tables by migrations, then types and functions.

Types and functions carry a version in their names, and one that was released never changes: a change is a new file with
the next version. So servers of two releases can run on one database during an upgrade, each with its own functions.
"""

import hashlib

from laurels.adapters.postgres.pool import Connection
from laurels.adapters.postgres.sql import SQL
from laurels.adapters.sql.files import load_migrations, sql_files
from laurels.errors import Unavailable

PACKAGE = "laurels.adapters.postgres"


async def is_current(connection: Connection) -> bool:
    """Return True if nothing has to be installed, and no server is installing or filling the schema now."""
    if (
        not await connection.fetchval(SQL["schema_is_free"])
        or await connection.fetchval("SELECT to_regclass('migrations')") is None
    ):
        return False
    done = int(await connection.fetchval(SQL["last_migration"]))
    return done == load_migrations(PACKAGE)[-1].number and not await _missing_routines(connection)


async def migrate(connection: Connection) -> list[str]:
    """Bring the schema up to date; return the names of the migrations that were applied.

    If several servers start together, one applies the migrations and the others wait.
    """
    # The duration of a migration depends on the size of the tables.
    await connection.execute("SET LOCAL statement_timeout = 0")
    await connection.execute(SQL["lock_schema"])
    await connection.execute(SQL["create_migrations"])
    done = int(await connection.fetchval(SQL["last_migration"]))
    migrations = load_migrations(PACKAGE)
    if done > migrations[-1].number:
        raise Unavailable(
            "ledger_unavailable",
            f"The ledger was written by a newer Laurels (schema {done}, this one knows {migrations[-1].number}). "
            "Upgrade this Laurels.",
        )
    missing = [migration for migration in migrations if migration.number > done]
    for migration in missing:
        await connection.execute(migration.script)
        await connection.execute(SQL["insert_migration"], migration.number, migration.name)
    # Functions may call others that are installed after them.
    await connection.execute("SET LOCAL check_function_bodies = off")
    for kind, name, script in await _missing_routines(connection):
        await connection.execute(script)
        await connection.execute(f"COMMENT ON {kind} {name} IS '{_checksum(script)}'")
    await connection.execute(SQL["insert_history"])
    return [migration.name for migration in missing]


async def _missing_routines(connection: Connection) -> list[tuple[str, str, str]]:
    """Return kind, name and script of each type and function that is not installed, types first.

    Raise Unavailable if one is installed with another text under the same name.
    """
    wanted = [
        (kind, file.name.removesuffix(".sql"), file.read_text("utf-8"))
        for kind, folder in (("TYPE", "types"), ("FUNCTION", "functions"))
        for file in sql_files(PACKAGE, folder)
    ]
    found = await connection.fetch(SQL["routines"], [name for _, name, _ in wanted])
    installed = {row["name"]: row["checksum"] for row in found}
    for kind, name, script in wanted:
        if name in installed and installed[name] != _checksum(script):
            raise Unavailable(
                "ledger_unavailable",
                f"The {kind.lower()} {name} in PostgreSQL differs from the one of this Laurels. "
                f"A changed {kind.lower()} needs a new version in its name.",
            )
    return [each for each in wanted if each[1] not in installed]


def _checksum(script: str) -> str:
    return hashlib.sha256(script.encode()).hexdigest()[:16]
