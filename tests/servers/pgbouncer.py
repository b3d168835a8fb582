"""PgBouncer in transaction mode in front of a PostgreSQL on TCP, set up as installed by default:
it refuses start-up parameters that it does not know."""

import shutil
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.servers.process import Daemon, free_port, greets, make_folder, require_program

_CONFIG = """\
[databases]
* = host={host} port={postgres_port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {server_connections}
max_client_conn = 1000
"""


class PgBouncer:
    """Serves every database of the server at `database_url`; `url` leads to the same one."""

    def __init__(self, database_url: str, *, server_connections: int = 2) -> None:
        self._program = require_program("pgbouncer")
        target = urlsplit(database_url)
        self.port = free_port()
        self.url = f"postgresql://{target.username}@127.0.0.1:{self.port}{target.path}"
        self._folder = make_folder("pgbouncer")
        self._config = self._folder / "pgbouncer.ini"
        self._config.write_text(
            _CONFIG.format(
                host=target.hostname,
                postgres_port=target.port,
                user=target.username,
                port=self.port,
                server_connections=server_connections,
            )
        )

    def __enter__(self) -> Self:
        log = self._folder / "log"
        self._daemon = Daemon([self._program, str(self._config)], log, drop_root=True)
        self._daemon.wait_ready(lambda: greets(self.port))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Newer versions wait for their clients on SIGTERM; there is nothing to save.
        self._daemon.kill()
        shutil.rmtree(self._folder)
