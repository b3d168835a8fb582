"""Real and hostile files through a real replica: an outcome with a reason each, none stuck, and
the service's own process as small as before."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil
import psycopg
import trio
from cryptography.fernet import Fernet

from service.db.pool import open_database
from service.db.requests import store_requests
from service.mail.message import request_from_raw
from service.model import Limits, NewRequest
from tests.db.rows import new_file, new_request
from tests.extract.pool import CODES
from tests.extract.samples import corners, endless_xlsx, pdf_of_pages, xlsx
from tests.servers import wait_until
from tests.servers.service import Replica

FOLDER = Path(__file__).parents[3] / "shared" / "cases"
LIMITS = Limits(max_file_bytes=26_214_400, inline_image_bytes=51_200)
RECEIVED_AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
MEGABYTE = 1024 * 1024
# A file of 24 MB leaves gaps in the heap, once.
MAY_GROW_BYTES = 70 * MEGABYTE
MAY_GROW_AGAIN_BYTES = 15 * MEGABYTE

HOSTILE = {
    "corners.xlsx": lambda: corners("XFD1048576", 1_048_576),
    "endless.xlsx": endless_xlsx,
    "pages.pdf": lambda: pdf_of_pages(*[b"A page"] * 5000),
    "one-line.csv": lambda: b"a;" * (12 * MEGABYTE),
    "noise.pdf": lambda: b"%PDF-1.7\n" + bytes(range(256)) * 40_000,
    "sheet.xlsx": lambda: xlsx("<row><c><v>&#0;</v></c></row>"),
    "surrogates.csv": lambda: "a;b\n\udcff;\0".encode("utf-16-le", "surrogatepass"),
}


def real_mails() -> list[NewRequest]:
    """The corpus and the fixtures, as far as they are there."""
    paths = sorted([*FOLDER.glob("corpus/*.eml"), *FOLDER.glob("fixtures/*.eml")])
    return [
        request_from_raw(path.read_bytes(), number, RECEIVED_AT, LIMITS)
        for number, path in enumerate(paths, start=1)
    ]


def mail_of(name: str, content: bytes) -> NewRequest:
    return new_request(f"<{name}@example.com>", attachments=(new_file(content, filename=name),))


async def store(url: str, requests: Sequence[NewRequest]) -> None:
    async with open_database(url) as db:
        await db.connect()
        for request in requests:
            async with db.transaction() as conn:
                await store_requests(conn, None, [request])


def left(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute(
            "SELECT count(*) FROM attachment WHERE status IN ('pending', 'processing')"
        ).fetchone()
        assert row is not None
        return int(row[0])


def test_whatever_comes_has_an_outcome_and_leaves_the_service_as_it_was(
    database_url: str, tmp_path: Path
) -> None:
    warm_up = [mail_of(f"warm-{number}.csv", b"a;b\n1;2\n") for number in range(10)]
    again = [mail_of(f"again-{name}", make()) for name, make in HOSTILE.items()]
    files = [mail_of(path.name, path.read_bytes()) for path in sorted(FOLDER.glob("files/*"))]
    hostile = [mail_of(name, make()) for name, make in HOSTILE.items()]
    environment = {
        "DATABASE_URL": database_url,
        "SERVICE_SECRET_KEY": Fernet.generate_key().decode(),
        "READ_TIMEOUT_SECONDS": "4",
    }
    with Replica(tmp_path, environment) as replica:
        replica.wait_ready()
        trio.run(store, database_url, warm_up)
        wait_until(lambda: left(database_url) == 0, seconds=20)
        process = psutil.Process(replica.process.pid)
        sizes_bytes = [process.memory_info().rss]
        for requests in ([*real_mails(), *files, *hostile], again):
            trio.run(store, database_url, requests)
            wait_until(lambda: left(database_url) == 0, seconds=60)
            sizes_bytes.append(process.memory_info().rss)
        assert replica.process.poll() is None
        assert sizes_bytes[1] - sizes_bytes[0] < MAY_GROW_BYTES, sizes_bytes
        assert sizes_bytes[2] - sizes_bytes[1] < MAY_GROW_AGAIN_BYTES, sizes_bytes
        assert replica.stop() == 0
    with psycopg.connect(database_url) as conn:
        rows = conn.execute(
            "SELECT filename, status, error, attempts FROM attachment WHERE status <> 'skipped'"
        ).fetchall()
    assert len(rows) >= len([*warm_up, *files, *hostile, *again])
    assert {row[1] for row in rows} == {"done", "failed"}
    reasons = {name: error for name, status, error, _ in rows if status == "failed"}
    assert {error.partition(":")[0] for error in reasons.values()} <= CODES
    assert all(attempts == 0 for *_, attempts in rows), "a file's own fault is not tried again"
    codes = {name: error.partition(":")[0] for name, error in reasons.items()}
    assert codes["corners.xlsx"] == "memory_limit"
    assert codes["endless.xlsx"] == "time_limit"
    assert codes["one-line.csv"] == "too_large"
    assert codes["noise.pdf"] == "damaged"
