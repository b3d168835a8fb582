"""A replica: `python -m service` as a process of its own, its log in a file."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from tests.servers.process import free_port, wait_until


class Replica:
    """Started once entered; stopped with SIGTERM at the end if it is still there."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.http_port = free_port()
        self.log = folder / f"replica-{self.http_port}.log"
        self._environment = {**environment, "HTTP_BIND": f"127.0.0.1:{self.http_port}"}

    def __enter__(self) -> Self:
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "service"],
                env={**os.environ, **self._environment},
                stdout=output,
                stderr=output,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.stop()

    def status(self, path: str = "/readyz") -> int:
        """The status of a GET; 0 while nobody answers."""
        try:
            url = f"http://127.0.0.1:{self.http_port}{path}"
            return httpx.get(url, timeout=5, verify=False).status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self, *, seconds: float = 20) -> None:
        wait_until(lambda: self.status() == 200, seconds=seconds)

    def is_connected_to(self, port: int) -> bool:
        """Whether it has a connection to this local port now."""
        connections = psutil.Process(self.process.pid).net_connections("tcp")
        return any(
            one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port == port
            for one in connections
        )

    def stop(self, number: int = signal.SIGTERM, *, seconds: float = 15) -> int:
        """Send a signal and wait; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)
