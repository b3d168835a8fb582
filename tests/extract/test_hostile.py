"""Hostile files through real child processes: each costs itself alone.

Whatever comes, there is a reason, the next good file is read, this process stays as small as it
was, and no process is left behind.
"""

import random
import time
import zlib
from dataclasses import replace

import psutil
import pytest

from service.extract.readers import Readers, open_readers
from tests.extract.pool import CODES, LIMITS, Refused, outcome, read, reading_processes, refusal
from tests.extract.samples import (
    GOOD_CSV,
    GOOD_PDF,
    GOOD_ROWS,
    GOOD_XLSX,
    MEGABYTE,
    corners,
    endless_ole,
    endless_xlsx,
    number_cell,
    pdf_of_pages,
    row_of,
    stream,
    text_cell,
    xlsx,
    xlsx_of_parts,
)

MUTATION_SECONDS = 5


async def assert_good_file_is_read(readers: Readers) -> None:
    result = await read(readers, GOOD_CSV)
    assert result == {"tables": [{"name": "", "rows": GOOD_ROWS}], "warnings": []}


def pdf_bomb() -> bytes:
    """A page whose content is 400 MB once unpacked, in 400 KB."""
    packed = zlib.compressobj(1)
    piece = b"BT /F1 12 Tf 72 720 Td (A) Tj ET\n" * 30_000
    data = b"".join(packed.compress(piece) for _ in range(400)) + packed.flush()
    page = pdf_of_pages(b"A")
    plain = b"BT /F1 12 Tf 72 720 Td (A) Tj ET"
    return page.replace(stream(plain), stream(data, b"/Filter /FlateDecode"))


@pytest.mark.parametrize(
    ("make", "codes"),
    [
        pytest.param(
            lambda: corners("XFD1048576", 1_048_576), {"memory_limit"}, id="A1 and XFD1048576"
        ),
        pytest.param(
            lambda: xlsx_of_parts(rows=(b'<row><c t="n"><v>1</v></c></row>', 6_000_000)),
            {"memory_limit"},
            id="a sheet of 190 MB",
        ),
        pytest.param(
            lambda: xlsx_of_parts(rows=(b" ", 500_000_000)), {"memory_limit"}, id="500 MB of spaces"
        ),
        pytest.param(
            lambda: xlsx_of_parts(rows=(b"", 0), shared=(b"<si><t>abcdefgh</t></si>", 6_000_000)),
            {"memory_limit"},
            id="shared strings of 150 MB",
        ),
        pytest.param(
            lambda: xlsx(row_of(4294967295, number_cell("ZZZZZZZ4294967295", 1))),
            {"damaged"},
            id="a cell behind every sheet's end",
        ),
        pytest.param(endless_ole, {"memory_limit"}, id="XLS that leads back to itself"),
        pytest.param(pdf_bomb, {"memory_limit"}, id="PDF of 400 MB"),
        pytest.param(lambda: b"a,b," * (30 * MEGABYTE // 4), {"too_large"}, id="30 MB on one line"),
    ],
)
async def test_what_unfolds_costs_itself_alone(make: object, codes: set[str]) -> None:
    assert callable(make)
    content = make()
    async with open_readers(1, replace(LIMITS, wall_seconds=20)) as readers:
        await assert_good_file_is_read(readers)
        before = psutil.Process().memory_info().rss
        found = await refusal(readers, content)
        assert found.code in codes, found
        assert len(found.sentence) > 20
        await assert_good_file_is_read(readers)
        assert psutil.Process().memory_info().rss - before < 20 * MEGABYTE
    assert reading_processes() == []


async def test_the_sentence_names_the_limit() -> None:
    async with open_readers(1, LIMITS) as readers:
        found = await refusal(readers, corners("XFD1048576", 1_048_576))
    assert found == Refused("memory_limit", "reading the file takes more memory than 256 MiB")


async def test_a_file_that_takes_for_ever() -> None:
    content = endless_xlsx()
    assert len(content) < 100_000
    async with open_readers(1, replace(LIMITS, wall_seconds=1)) as readers:
        await assert_good_file_is_read(readers)
        started = time.monotonic()
        found = await refusal(readers, content)
        assert found == Refused("time_limit", "reading the file took longer than 1 s")
        assert time.monotonic() - started < 3
        await assert_good_file_is_read(readers)
    assert reading_processes() == []


async def test_large_results_and_failures_leave_nothing_in_this_process() -> None:
    large = b"".join(b"%d,some text in a cell\n" % number for number in range(100_000))
    hostile = corners("XFD1048576", 1_048_576)
    async with open_readers(2, LIMITS) as readers:
        for _ in range(3):
            await readers.read(large)
        before = psutil.Process().memory_info().rss
        for _ in range(10):
            result = await readers.read(large)
            assert LIMITS.output_bytes - 1_000 < len(result) < LIMITS.output_bytes + 1_000
        await outcome(readers, hostile)
        assert psutil.Process().memory_info().rss - before < 20 * MEGABYTE


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Some octets changed, cut out or doubled."""
    mutated = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(mutated))
        until = at + chance.randint(1, 40)
        kind = chance.randrange(4)
        if kind == 0:
            mutated[at] = chance.randrange(256)
        elif kind == 1:
            del mutated[at:until]
        elif kind == 2:
            mutated[at:at] = mutated[at:until]
        else:
            mutated[at:until] = chance.choice((b"", b"\0\xff", b"-1", b"99999999999", b'"', b"<<["))
        if not mutated:
            break
    return bytes(mutated)


async def test_mutations_have_a_result_or_a_reason() -> None:
    """The seed is in the message, so that a failure can be made again."""
    samples = (
        GOOD_PDF,
        GOOD_XLSX,
        GOOD_CSV * 20,
        xlsx(row_of(1, text_cell("A1", "x")), sheets=('name="A"', 'name="B" state="hidden"')),
    )
    deadline = time.monotonic() + MUTATION_SECONDS
    done = 0
    async with open_readers(1, replace(LIMITS, wall_seconds=2)) as readers:
        while time.monotonic() < deadline or done < 50:
            chance = random.Random(done)
            found = await outcome(readers, mutate(chance.choice(samples), chance))
            if isinstance(found, Refused):
                assert found.code in CODES, f"seed {done}: {found}"
            else:
                assert found.keys() in ({"text", "pages", "warnings"}, {"tables", "warnings"}), done
            done += 1
        await assert_good_file_is_read(readers)
    assert reading_processes() == []
