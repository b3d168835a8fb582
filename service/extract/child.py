"""One child process that reads files, as its parent sees it.

A child answers one request at a time and is killed when its caller goes away, when it takes too
long or says too much. `ChildDied` carries what its death means for the file.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from subprocess import PIPE
from typing import Self, cast

import trio

from service.errors import ReadFailed, TryLater
from service.extract.frames import ANSWER, ANSWER_OVERHEAD_BYTES, REQUEST, Kind
from service.extract.result import MEGABYTE
from service.model import ReadLimits

START_TIMEOUT_SECONDS = 30
END_TIMEOUT_SECONDS = 1
CLOSE_TIMEOUT_SECONDS = 5
PIPE_BYTES = 64 * 1024

# What Python and its libraries need; nothing that says where the database is or holds a key.
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT")
# Rust's and Python's words for it.
_OUT_OF_MEMORY = ("memory allocation of", "MemoryError")


class ChildDied(Exception):
    """The process ended in the middle; `failure` is what that says of the file, if it did it."""

    def __init__(self, failure: ReadFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Child:
    """A running process; `start` it, `ask` it, and `aclose` it."""

    def __init__(self, process: trio.Process, limits: ReadLimits) -> None:
        self._process = process
        self._limits = limits
        self._stdin = cast("trio.abc.SendStream", process.stdin)
        self._stdout = cast("trio.abc.ReceiveStream", process.stdout)
        self._stderr = cast("trio.abc.ReceiveStream", process.stderr)
        self._said = b""
        self._between_files = False
        self._is_closed = False

    @classmethod
    async def start(cls, limits: ReadLimits) -> Self:
        """A child that is ready for its first file. TryLater when it cannot be had."""
        try:
            process = await _open_process(limits)
        except OSError as error:
            raise TryLater(f"no process could be started to read the file: {error}") from error
        child = cls(process, limits)
        try:
            with trio.move_on_after(START_TIMEOUT_SECONDS) as deadline:
                kind, _, _ = await child._receive()
                child._between_files = kind is Kind.READY
        except (trio.BrokenResourceError, ValueError):
            pass
        finally:
            if not child._between_files:
                await child.aclose()
        if not child._between_files:
            reason = "it took too long" if deadline.cancelled_caught else child._last_words()
            raise TryLater(f"the process that reads files did not start: {reason}")
        return child

    @property
    def is_usable(self) -> bool:
        """Whether it lives and waits for a file."""
        return self._between_files and self._process.poll() is None

    async def ask(self, content: bytes) -> bytes:
        """The result's JSON. ReadFailed, or ChildDied; look at `is_usable` after all of them."""
        self._between_files = False
        with trio.move_on_after(self._limits.wall_seconds):
            try:
                return await self._exchange(content)
            except trio.BrokenResourceError:
                await self._wait_for_end()
                raise ChildDied(self._explain_death()) from None
            except ValueError as error:
                raise ReadFailed("reader_crashed", f"the reader makes no sense: {error}") from None
        seconds = f"{self._limits.wall_seconds:g} s"
        raise ReadFailed("time_limit", f"reading the file took longer than {seconds}")

    async def aclose(self) -> None:
        """Kill it if it lives, and leave nothing of it behind. May be called again."""
        self._between_files = False
        if self._is_closed:
            return
        self._is_closed = True
        with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True):
            self._process.kill()
            await self._process.wait()
            while len(self._said) < PIPE_BYTES and (
                chunk := await self._stderr.receive_some(PIPE_BYTES)
            ):
                self._said += chunk
        with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True):
            for stream in (self._stdin, self._stdout, self._stderr):
                await stream.aclose()

    async def _exchange(self, content: bytes) -> bytes:
        """ValueError when the answer makes no sense, BrokenResourceError when none comes."""
        header = REQUEST.pack(len(content))
        # A small file goes in one write: each costs a turn of the event loop.
        for piece in (header + content,) if len(content) < PIPE_BYTES else (header, content):
            await self._stdin.send_all(piece)
        kind, is_last, payload = await self._receive()
        if kind is Kind.RESULT:
            self._between_files = not is_last
            return payload
        code, sentence = json.loads(payload)
        self._between_files = not is_last
        raise ReadFailed(code, sentence)

    async def _receive(self) -> tuple[Kind, bool, bytes]:
        received = bytearray()
        await self._fill(received, ANSWER.size)
        kind, is_last, size = ANSWER.unpack_from(received)
        if size > self._limits.output_bytes + ANSWER_OVERHEAD_BYTES:
            raise ValueError(f"it answers with {size} bytes")
        await self._fill(received, ANSWER.size + size)
        if len(received) > ANSWER.size + size:
            raise ValueError("it answers with more than it announced")
        return Kind(kind), is_last, bytes(memoryview(received)[ANSWER.size :])

    async def _fill(self, received: bytearray, size: int) -> None:
        while len(received) < size:
            chunk = await self._stdout.receive_some(PIPE_BYTES)
            if not chunk:
                raise trio.BrokenResourceError("the process ended")
            received += chunk

    async def _wait_for_end(self) -> None:
        """Its pipes close before it has an exit code, which a kill in between would hide."""
        with trio.move_on_after(END_TIMEOUT_SECONDS):
            await self._process.wait()
        await self.aclose()

    def _explain_death(self) -> ReadFailed:
        """From its exit code and its last words."""
        said = self._said.decode(errors="replace")
        name = _signal_name(self._process.returncode or 0)
        # pdfium aborts without a word when it gets no memory; a broken heap is put into words.
        if any(words in said for words in _OUT_OF_MEMORY) or (name == "SIGABRT" and not said):
            limit = f"{self._limits.memory_bytes / MEGABYTE:.4g} MiB"
            return ReadFailed("memory_limit", f"reading the file takes more memory than {limit}")
        if name == "SIGXCPU":
            return ReadFailed("time_limit", "reading the file took too much time")
        return ReadFailed("reader_crashed", f"the reader crashed: {name or self._last_words()}")

    def _last_words(self) -> str:
        lines = self._said.decode(errors="replace").split("\n")
        return next((line[:200] for line in reversed(lines) if line.strip()), "it said nothing")


async def _open_process(limits: ReadLimits) -> trio.Process:
    sizes: Sequence[float] = (limits.memory_bytes, limits.wall_seconds, limits.output_bytes)
    return await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", "service.extract", *map(str, sizes)],
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=_environment(),
        # Ctrl-C is for this process; the child ends with its standard input.
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """The variables of the child; PYTHONPATH makes it find what this process has found."""
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**passed_on, "PYTHONPATH": path}


def _signal_name(returncode: int) -> str | None:
    """SIGKILL and so on, for a process that a signal has ended."""
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return None
