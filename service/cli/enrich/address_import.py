"""One run of `enrich import`: a file is read in a thread, its addresses stored batch by batch.

Each batch is one short transaction that also notes how far the file is stored. Whatever ends a run,
the next one of the same file goes on from there; runs at the same time share the work.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import BinaryIO, TypeVar

import trio
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from service.cli.enrich.address_file import AddressReader, BadLines, Batch, Fingerprint
from service.db import imports
from service.db.pool import Database
from service.errors import DatabaseUnreachable, MailroomError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """Of the command: a column's name or number and the delimiter, None: found out."""

    column: str | None
    delimiter: str | None
    again: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of a file; `rows_before` were stored by earlier runs, or others meanwhile.

    Bad lines are those of the whole file.
    """

    file_sha256: str
    column: str
    rows_imported: int
    rows_before: int
    bad_lines: int
    seconds: float
    already_imported_at: datetime | None


def create_progress() -> Progress:
    """A bar on standard error; nothing where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[rows]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


class AddressImport:
    """The import of an open file."""

    def __init__(
        self, db: Database, file: BinaryIO, bad_lines: BadLines, progress: Progress
    ) -> None:
        self._db = db
        self._fingerprint = Fingerprint(file)
        self._bad_lines = bad_lines
        self._progress = progress
        self._rows_imported = 0

    async def run(self, options: Options) -> Summary:
        """To the end of the file.

        MailroomError, if it cannot be used or is changed meanwhile; OSError.
        """
        began = trio.current_time()
        await self._take_fingerprint()
        reader = await _in_thread(
            partial(
                AddressReader,
                self._fingerprint,
                self._bad_lines,
                column=options.column,
                delimiter=options.delimiter,
            )
        )
        sha256 = self._fingerprint.sha256
        with _hint_at_next_run():
            async with self._db.transaction() as conn:
                before = await imports.begin_import(conn, sha256, again=options.again)
            if before.finished_at is None:
                await self._store_all(reader, before.lines_done)
            async with self._db.connection() as conn:
                after = await imports.get_import(conn, sha256)
        return Summary(
            file_sha256=sha256.hex(),
            column=str(reader.column),
            rows_imported=self._rows_imported,
            rows_before=after.rows_stored - self._rows_imported,
            bad_lines=self._bad_lines.count,
            seconds=round(trio.current_time() - began, 3),
            already_imported_at=before.finished_at,
        )

    async def _take_fingerprint(self) -> None:
        size_bytes = self._fingerprint.size_bytes
        task = self._progress.add_task("reading", total=size_bytes, rows="")
        while await _in_thread(self._fingerprint.read_piece):
            self._progress.update(task, completed=self._fingerprint.position)
        self._progress.remove_task(task)

    async def _store_all(self, reader: AddressReader, lines_done: int) -> None:
        size_bytes = self._fingerprint.size_bytes
        task = self._progress.add_task("importing", total=size_bytes, rows="")
        began = trio.current_time()
        is_last = False
        while not is_last:
            batch = await _in_thread(reader.read_batch)
            lines_done = await self._store(batch, lines_done)
            is_last = batch.is_last
            rows_per_second = self._rows_imported / (trio.current_time() - began)
            position = self._fingerprint.position
            self._progress.update(task, completed=position, rows=f"{rows_per_second:.0f} rows/s")

    async def _store(self, batch: Batch, lines_done: int) -> int:
        """Store what of it is behind `lines_done`, by us or another run; the line done then."""
        while batch.last_line > lines_done or batch.is_last:
            addresses = [address for line, address in batch.rows if line > lines_done]
            async with self._db.transaction() as conn:
                if await imports.store_addresses(
                    conn,
                    self._fingerprint.sha256,
                    addresses,
                    lines_before=lines_done,
                    lines_done=max(batch.last_line, lines_done),
                    is_last=batch.is_last,
                ):
                    self._rows_imported += len(addresses)
                    return batch.last_line
                theirs = await imports.get_import(conn, self._fingerprint.sha256)
            if theirs.lines_done < lines_done:
                raise MailroomError("another run has begun to import the file from its start again")
            lines_done = theirs.lines_done
            if theirs.finished_at is not None:
                break
        return lines_done


async def _in_thread(step: Callable[[], T]) -> T:
    """A signal does not wait for it: the file is closed then, and the thread fails unheard."""
    return await trio.to_thread.run_sync(step, abandon_on_cancel=True)


@contextmanager
def _hint_at_next_run() -> Iterator[None]:
    try:
        yield
    except DatabaseUnreachable as error:
        hint = "run the same command again: it goes on where it was"
        raise DatabaseUnreachable(str(error), hint=hint) from error
