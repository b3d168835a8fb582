"""One child process that reads files, as its parent sees it.

A child reads one file after the other and is of no use any more when a caller goes away in the
middle, or when it says too much. No error is kept in a variable: its traceback holds the file, and
garbage is collected rarely.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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


class ChildDied(ReadFailed):
    """The process ended in the middle: because of this file, if it was the first that it read."""


class Child:
    """A running process: `start` it, `send` it a file, `receive` what is in it, and `aclose` it.

    The next file may be sent ahead, while the answer to the one before is awaited.
    """

    def __init__(self, process: trio.Process, limits: ReadLimits) -> None:
        self._process = process
        self._limits = limits
        self._stdin = cast("trio.abc.SendStream", process.stdin)
        self._stdout = cast("trio.abc.ReceiveStream", process.stdout)
        self._stderr = cast("trio.abc.ReceiveStream", process.stderr)
        self._received = bytearray()
        self._said = b""
        self._is_spent = False
        self._is_closed = False

    @classmethod
    async def start(cls, limits: ReadLimits) -> Self:
        """A child that is ready for its first file. TryLater when it cannot be had."""
        try:
            process = await _open_process(limits)
        except OSError as error:
            reason = f"no process could be started to read the file: {error}"
            raise TryLater(reason, counts=False) from error
        child = cls(process, limits)
        is_ready = False
        try:
            with trio.move_on_after(START_TIMEOUT_SECONDS) as deadline:
                kind, _, _ = await child._receive()
                is_ready = kind is Kind.READY
        except (trio.BrokenResourceError, ValueError):
            pass
        finally:
            if not is_ready:
                await child.aclose()
        if not is_ready:
            reason = "it took too long" if deadline.cancelled_caught else child._last_words()
            raise TryLater(f"the process that reads files did not start: {reason}", counts=False)
        return child

    @property
    def is_usable(self) -> bool:
        """Whether it lives and can take files."""
        return not self._is_spent and self._process.poll() is None

    def spoil(self) -> None:
        """Let it take no more files."""
        self._is_spent = True

    async def send(self, content: bytes) -> None:
        """Give it a file. Whatever hinders that shows in `receive`."""
        header = REQUEST.pack(len(content))
        with (
            self._spent_unless_done(),
            suppress(trio.BrokenResourceError, trio.ClosedResourceError),
        ):
            # A small file goes in one write: each costs a turn of the event loop.
            if len(content) < PIPE_BYTES:
                await self._stdin.send_all(header + content)
            else:
                await self._stdin.send_all(header)
                await self._stdin.send_all(content)

    async def receive(self) -> bytes:
        """The result's JSON of the first file without an answer. ReadFailed, ChildDied."""
        with self._spent_unless_done():
            try:
                kind, is_last, payload = await self._receive()
                refusal = None if kind is Kind.RESULT else _parse_refusal(payload)
            except trio.BrokenResourceError:
                self._is_spent = True
                await self._wait_for_end()
                raise self._explain_death() from None
            except ValueError as error:
                self._is_spent = True
                raise ReadFailed("reader_crashed", f"the reader makes no sense: {error}") from None
        self._is_spent |= is_last
        if refusal is not None:
            raise ReadFailed(*refusal)
        return payload

    @contextmanager
    def _spent_unless_done(self) -> Iterator[None]:
        """One that was left in the middle of something is of no use any more."""
        try:
            yield
        except trio.Cancelled:
            self._is_spent = True
            raise

    async def aclose(self) -> None:
        """Kill it if it lives, and leave nothing of it behind. May be called again."""
        self._is_spent = True
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

    async def _receive(self) -> tuple[Kind, bool, bytes]:
        """ValueError when what comes makes no sense, BrokenResourceError when nothing comes."""
        await self._fill(ANSWER.size)
        kind, is_last, size = ANSWER.unpack_from(self._received)
        if size > self._limits.output_bytes + ANSWER_OVERHEAD_BYTES:
            raise ValueError(f"it answers with {size} bytes")
        end = ANSWER.size + size
        await self._fill(end)
        payload = bytes(memoryview(self._received)[ANSWER.size : end])
        del self._received[:end]
        return Kind(kind), is_last, payload

    async def _fill(self, size: int) -> None:
        while len(self._received) < size:
            chunk = await self._stdout.receive_some(PIPE_BYTES)
            if not chunk:
                raise trio.BrokenResourceError("the process ended")
            self._received += chunk

    async def _wait_for_end(self) -> None:
        """Its pipes close before it has an exit code, which a kill in between would hide."""
        with trio.move_on_after(END_TIMEOUT_SECONDS):
            await self._process.wait()
        await self.aclose()

    def _explain_death(self) -> ChildDied:
        """From its exit code and its last words."""
        said = self._said.decode(errors="replace")
        name = _signal_name(self._process.returncode or 0)
        # pdfium aborts without a word when it gets no memory; a broken heap is put into words.
        if any(words in said for words in _OUT_OF_MEMORY) or (name == "SIGABRT" and not said):
            limit = f"{self._limits.memory_bytes / MEGABYTE:.4g} MiB"
            return ChildDied("memory_limit", f"reading the file takes more memory than {limit}")
        if name == "SIGXCPU":
            return ChildDied("time_limit", "reading the file took too much time")
        return ChildDied("reader_crashed", f"the reader crashed: {name or self._last_words()}")

    def _last_words(self) -> str:
        lines = self._said.decode(errors="replace").split("\n")
        return next((line[:200] for line in reversed(lines) if line.strip()), "it said nothing")


def _parse_refusal(payload: bytes) -> tuple[str, str]:
    """Code and sentence. ValueError."""
    code, sentence = json.loads(payload)
    return str(code), str(sentence)


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
