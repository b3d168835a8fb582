"""The pool of reading processes: what lives, what dies, and what is left of it."""

import gc
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from service.errors import IOInsideTransaction, TryLater
from service.extract.readers import Readers, open_readers
from service.outbound import holding_connection
from tests.extract.pool import LIMITS, Refused, outcome, read, reading_processes, refusal
from tests.extract.samples import (
    GOOD_CSV,
    GOOD_PDF,
    GOOD_XLSX,
    MEGABYTE,
    corners,
    endless_xlsx,
)
from tests.servers import wait_until

ENDLESS = endless_xlsx()
BUSY_CPU_SECONDS = 1


@pytest.fixture
async def readers() -> AsyncIterator[Readers]:
    with trio.fail_after(30):
        async with open_readers(2, LIMITS) as opened:
            yield opened
    assert reading_processes() == []


async def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    await trio.to_thread.run_sync(lambda: wait_until(condition, seconds=seconds))


async def wait_until_busy(process: psutil.Process) -> None:
    """Until it has taken more CPU than a start takes: it is at its file."""
    begun = process.cpu_times().user
    await wait_for(lambda: process.cpu_times().user > begun + BUSY_CPU_SECONDS)


def has_ended(process_id: int) -> bool:
    """Also when nobody has taken its exit code yet."""
    try:
        return bool(psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def only_process() -> psutil.Process:
    (process,) = reading_processes()
    return process


async def test_one_process_reads_one_file_after_the_other(readers: Readers) -> None:
    assert reading_processes() == []
    seen = set()
    for content in (GOOD_CSV, GOOD_PDF, GOOD_XLSX, b"", GOOD_CSV):
        await outcome(readers, content)
        seen.add(only_process().pid)
    assert len(seen) == 1


async def test_several_files_at_once_and_no_more_processes_than_that(readers: Readers) -> None:
    results = []

    async def read_one(content: bytes) -> None:
        results.append(await read(readers, content))

    async with trio.open_nursery() as nursery:
        for content in (GOOD_CSV, GOOD_PDF, GOOD_XLSX) * 20:
            nursery.start_soon(read_one, content)
    assert len(results) == 60
    assert len(reading_processes()) == 2
    assert sum("tables" in result for result in results) == 40


async def test_a_connection_may_not_be_held(readers: Readers) -> None:
    with holding_connection("test.py:1"), pytest.raises(IOInsideTransaction):
        await readers.read(GOOD_CSV)


async def test_the_process_gets_no_secret(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "SERVICE_SECRET_KEY", "LLM_API_KEY", "WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "secret-value")
    await read(readers, GOOD_CSV)
    process = only_process()
    environment = process.environ()
    assert "secret-value" not in environment.values()
    assert environment.keys() <= {
        "PATH", "PYTHONPATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONHOME",
    }  # fmt: skip
    assert os.getsid(process.pid) == process.pid


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows another process's limits")
async def test_the_limits_are_set(readers: Readers) -> None:
    await read(readers, GOOD_CSV)
    process = only_process()

    def soft(limit: int) -> int:
        return int(resource.prlimit(process.pid, limit)[0])

    assert soft(resource.RLIMIT_AS) == LIMITS.memory_bytes
    assert soft(resource.RLIMIT_CORE) == soft(resource.RLIMIT_FSIZE) == 0
    assert soft(resource.RLIMIT_NOFILE) == 32
    assert LIMITS.wall_seconds < soft(resource.RLIMIT_CPU) < LIMITS.wall_seconds + 5


async def test_killed_while_idle_the_next_file_does_not_notice(readers: Readers) -> None:
    for _ in range(3):
        await read(readers, GOOD_CSV)
        only_process().kill()
        await read(readers, GOOD_CSV)
        assert only_process().is_running()


async def test_a_warm_process_that_dies_is_no_proof_against_the_file(readers: Readers) -> None:
    await read(readers, GOOD_CSV)
    process = only_process()
    process.suspend()
    results = []

    async def read_pdf() -> None:
        results.append(await read(readers, GOOD_PDF))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_pdf)
        await wait_all_tasks_blocked()
        process.kill()
    assert [result["pages"] for result in results] == [["Invoice 4711", "Thank you"]]
    assert only_process().pid != process.pid


async def test_a_fresh_process_that_dies_is(readers: Readers) -> None:
    found = []

    async def read_endless() -> None:
        found.append(await outcome(readers, ENDLESS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_endless)
        await wait_for(lambda: len(reading_processes()) == 1)
        process = only_process()
        await wait_until_busy(process)
        process.kill()
    assert found == [Refused("reader_crashed", "the reader crashed: SIGKILL")]
    assert (await read(readers, GOOD_CSV))["tables"]


async def test_a_process_that_stands_still_is_killed() -> None:
    async with open_readers(1, replace(LIMITS, wall_seconds=0.5)) as readers:
        await read(readers, GOOD_CSV)
        process = only_process()
        process.suspend()
        started = time.monotonic()
        found = await refusal(readers, GOOD_CSV)
        assert found == Refused("time_limit", "reading the file took longer than 0.5 s")
        assert time.monotonic() - started < 2
        assert not process.is_running()
        assert (await read(readers, GOOD_CSV))["tables"]


async def test_a_process_that_has_grown_is_replaced(readers: Readers) -> None:
    await read(readers, GOOD_CSV)
    first = only_process().pid
    result = await read(readers, corners("XFD230", last_row=230))
    assert len(result["tables"][0]["rows"]) == 230
    assert reading_processes() == []
    await read(readers, GOOD_CSV)
    assert only_process().pid != first


@pytest.mark.parametrize("after_seconds", [0, 0.02, 0.1, 0.5])
async def test_cancelled_while_it_starts_or_reads(readers: Readers, after_seconds: float) -> None:
    with trio.move_on_after(after_seconds) as scope:
        await readers.read(ENDLESS)
    assert scope.cancelled_caught
    assert reading_processes() == []
    assert (await read(readers, GOOD_CSV))["tables"]


async def test_cancelled_while_it_waits_for_a_process() -> None:
    async with open_readers(1, LIMITS) as readers, trio.open_nursery() as nursery:
        nursery.start_soon(outcome, readers, ENDLESS)
        await wait_for(lambda: len(reading_processes()) == 1)
        with trio.move_on_after(0.1) as scope:
            await readers.read(GOOD_CSV)
        assert scope.cancelled_caught
        assert len(reading_processes()) == 1
        nursery.cancel_scope.cancel()
    assert reading_processes() == []


async def test_nothing_stays_open() -> None:
    before = psutil.Process().num_fds()
    for _ in range(3):
        async with open_readers(2, LIMITS) as readers:
            await read(readers, GOOD_CSV)
            only_process().kill()
            await read(readers, GOOD_PDF)
            with trio.move_on_after(0.05):
                await readers.read(ENDLESS)
    assert psutil.Process().num_fds() == before
    assert reading_processes() == []


async def test_no_process_to_be_had(readers: Readers) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    await read(readers, GOOD_CSV)
    process = only_process()
    process.kill()
    await wait_for(lambda: has_ended(process.pid))
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds(), hard))
    try:
        with pytest.raises(TryLater, match="no process could be started"):
            await readers.read(GOOD_CSV)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (await read(readers, GOOD_CSV))["tables"]


def executable(folder: Path, body: str) -> str:
    """A program that runs in place of Python, with its struct and the answers' pipe at hand."""
    path = folder / "program"
    path.write_text(
        f"#!{sys.executable}\n"
        "import struct, sys\n"
        "def answer(*header):\n"
        "    sys.stdout.buffer.write(struct.pack('!B?I', *header))\n"
        "    sys.stdout.buffer.flush()\n"
        f"{body}\n"
    )
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('no library here')", "no library here"),
        ("answer(7, False, 0)", "it said nothing"),
    ],
)
async def test_a_process_that_does_not_get_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str, readers: Readers
) -> None:
    monkeypatch.setattr(sys, "executable", executable(tmp_path, body))
    with pytest.raises(TryLater, match=reason):
        await readers.read(GOOD_CSV)


@pytest.mark.parametrize("header", ["1, False, 2**31", "9, False, 0", "0, False, 0", "2, False, 0"])
async def test_a_process_that_makes_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, readers: Readers
) -> None:
    """The first says that it has 2 GB to say, and says them."""
    body = f"""
answer(0, False, 0)
sys.stdin.buffer.read(4)
answer({header})
while True:
    sys.stdout.buffer.write(bytes(1 << 20))
"""
    monkeypatch.setattr(sys, "executable", executable(tmp_path, body))
    before = psutil.Process().memory_info().rss
    found = await refusal(readers, GOOD_CSV)
    assert found.code == "reader_crashed", found
    assert psutil.Process().memory_info().rss - before < 20 * MEGABYTE


ORPHANS = """
import trio
from service.extract.readers import open_readers
from service.model import ReadLimits
from tests.extract.samples import GOOD_CSV, endless_xlsx

async def main():
    async with open_readers(2, ReadLimits(256 * 1024 * 1024, 3, 1024)) as readers:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readers.read, GOOD_CSV)
            nursery.start_soon(readers.read, GOOD_CSV)
        print("two are warm", flush=True)
        await readers.read(endless_xlsx())

trio.run(main)
"""


async def test_processes_do_not_outlive_a_parent_that_is_killed() -> None:
    """The idle one ends with its input, the busy one with its share of CPU."""
    command = [sys.executable, "-c", ORPHANS]
    parent = await trio.lowlevel.open_process(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    try:
        assert await parent.stdout.receive_some(), "it ended instead of reading"
        orphans = psutil.Process(parent.pid).children()
        begun = {orphan.pid: orphan.cpu_times().user for orphan in orphans}
        await wait_for(lambda: any(o.cpu_times().user > begun[o.pid] + 0.3 for o in orphans))
    finally:
        parent.kill()
        await parent.wait()
        await parent.stdout.aclose()
    assert len(orphans) == 2
    await wait_for(lambda: all(has_ended(orphan.pid) for orphan in orphans))


@pytest.mark.parametrize(
    ("megabytes", "code"), [(30, "too_large"), (150, "memory_limit")], ids=["refused", "died"]
)
async def test_a_file_that_gives_nothing_is_not_kept_in_memory(
    readers: Readers, megabytes: int, code: str
) -> None:
    """As it would be by a cycle of an exception and its traceback, until garbage is collected."""
    process = psutil.Process()
    await read(readers, GOOD_CSV)
    gc.disable()
    try:
        before_bytes = process.memory_info().rss
        for _ in range(3):
            assert (await refusal(readers, b"a;" * (megabytes * MEGABYTE // 2))).code == code
        assert process.memory_info().rss - before_bytes < megabytes * MEGABYTE
    finally:
        gc.enable()
