"""PgBouncer in front of a PostgreSQL on TCP, with the configuration that users get,
`deploy/pgbouncer.ini`, but for what differs from machine to machine."""

import shutil
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.servers.process import Daemon, free_port, greets, make_folder, require_program

_DEPLOYED = Path(__file__).parents[2] / "deploy" / "pgbouncer.ini"
# Of two lines the later one counts. Included outside a section, its settings would be passed over.
_CONFIG = """\
[databases]
* = host={host} port={postgres_port} user={user}

[pgbouncer]
%include {folder}/deployed.ini
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
auth_file = {folder}/userlist.txt
default_pool_size = {server_connections}
reserve_pool_size = 0
"""


class PgBouncer:
    """Serves every database of the server at `database_url`; `url` leads to the same one.

    `settings` are more of its settings that differ from the deployed file.
    """

    def __init__(self, database_url: str, *, server_connections: int = 2, **settings: str) -> None:
        self._program = require_program("pgbouncer")
        target = urlsplit(database_url)
        self.port = free_port()
        self.url = f"postgresql://{target.username}@127.0.0.1:{self.port}{target.path}"
        self._folder = make_folder("pgbouncer")
        self._log = self._folder / "log"
        # Copied, as PgBouncer may run as a user who cannot read the checkout.
        shutil.copy(_DEPLOYED, self._folder / "deployed.ini")
        (self._folder / "userlist.txt").touch()
        config = _CONFIG.format(
            folder=self._folder,
            host=target.hostname,
            postgres_port=target.port,
            user=target.username,
            port=self.port,
            server_connections=server_connections,
        )
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        self._config = self._folder / "pgbouncer.ini"
        self._config.write_text(config + lines)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def __enter__(self) -> Self:
        self._daemon = Daemon([self._program, str(self._config)], self._log, drop_root=True)
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
