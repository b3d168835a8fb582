"""What the server classes share: programs, ports, folders, users, and child processes.

A child that ends before it is ready, or is not ready in time, raises with the end of its log.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

_LOG_TAIL_BYTES = 2000
_SHM = Path("/dev/shm")
_ROOMY_BYTES = 2 * 1024**3


def require_program(name: str) -> str:
    """The path of `name`; skips the test without it, or fails where the servers are required."""
    # Debian keeps daemons in /usr/sbin, which is not in everybody's PATH.
    search_path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    path = shutil.which(name, path=search_path)
    if path is not None:
        return path
    if os.environ.get("MAILROOM_REQUIRE_SERVERS") == "1":
        pytest.fail(f"{name} is not installed, and MAILROOM_REQUIRE_SERVERS=1")
    pytest.skip(f"{name} is not installed")


def unprivileged_user() -> pwd.struct_passwd:
    """Oneself, or `nobody` for root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def make_folder(name: str, *, in_memory: bool = False) -> Path:
    """A new temporary folder: a short path, for sockets in it, that every user may enter.

    `in_memory`: on the memory file system where there is a roomy one.
    """
    roomy = in_memory and _SHM.is_dir() and shutil.disk_usage(_SHM).free > _ROOMY_BYTES
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_SHM if roomy else None))
    folder.chmod(0o755)
    return folder


def wait_until(condition: Callable[[], object], *, seconds: float = 10) -> None:
    """Return once `condition()` is true; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true within {seconds} s: {condition}"
        time.sleep(0.01)


def greets(port: int, greeting: bytes = b"") -> bool:
    """Whether the port can be connected to and begins its answer with `greeting`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            return client.recv(len(greeting)) == greeting if greeting else True
    except OSError:
        return False


class Daemon:
    """A child process in the foreground, its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, *, drop_root: bool = False) -> None:
        user = unprivileged_user() if drop_root and os.geteuid() == 0 else None
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                user=user and user.pw_uid,
                group=user and user.pw_gid,
                extra_groups=[] if user else None,
            )
        self._log = log

    def wait_ready(self, ready: Callable[[], bool], *, seconds: float = 10) -> None:
        try:
            wait_until(lambda: self._process.poll() is not None or ready(), seconds=seconds)
            assert self._process.poll() is None, "it ended at once"
        except AssertionError as error:
            self.kill()
            tail = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
            raise RuntimeError(f"{self._process.args!r} did not start: {error}\n{tail}") from error

    def terminate(self, *, seconds: float = 10) -> None:
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
