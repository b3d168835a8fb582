"""`enrich import`: the addresses of a CSV file become rows of `job_advertisement`."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click
from trio_util import move_on_when

from service.cli.common import (
    EXIT_INTERRUPTED,
    json_option,
    load_settings,
    print_json,
    run_with_database,
    wait_for_signal,
)
from service.cli.enrich.address_file import BadLines
from service.cli.enrich.address_import import AddressImport, Options, Summary, create_progress
from service.db.pool import Database
from service.errors import MailroomError


def _parse_delimiter(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    if value == "tab":
        return "\t"
    if value is not None and (len(value) != 1 or value in '"\r\n\0 '):
        raise click.BadParameter("must be one character, such as ';', or: tab")
    return value


@click.command("import")
@click.argument(
    "path", metavar="FILE.csv", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--column",
    metavar="NAME|NUMBER",
    help="Where the addresses are; default: the column that is called email, e-mail or mail, or"
    " without a header the first one with an @ in the first row.",
)
@click.option(
    "--delimiter",
    metavar="C",
    callback=_parse_delimiter,
    help="A character, or: tab. Default: found out.",
)
@click.option("--again", is_flag=True, help="From the first line, whatever was imported before.")
@click.option(
    "--bad-lines",
    "bad_lines_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all bad lines here, as CSV with their numbers and reasons.",
)
@json_option
def import_file(
    path: Path,
    column: str | None,
    delimiter: str | None,
    again: bool,
    bad_lines_path: Path | None,
    as_json: bool,
) -> None:
    """Add a row to job_advertisement for each address in FILE.csv.

    It can be broken off at any time: the same file goes on where it was, and a finished one is not
    imported twice. UTF-8, or UTF-16 with its mark; a first row without any @ is the header. A line
    without an address that can be stored is bad; one whose address makes no sense is imported.
    """
    if not path.is_file():
        raise click.BadParameter("must be a file, because it is read twice", param_hint="FILE.csv")
    if bad_lines_path is not None and bad_lines_path.exists() and bad_lines_path.samefile(path):
        raise click.BadParameter("is the file to import", param_hint="--bad-lines")
    settings = load_settings()
    options = Options(column, delimiter, again)
    try:
        with path.open("rb") as file, _open_bad_lines(bad_lines_path) as bad_lines:
            summary = run_with_database(settings, partial(_import, file, bad_lines, options))
    except OSError as error:
        raise MailroomError(str(error)) from error
    if summary is None:
        click.echo("stopped; the same command goes on where it was", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    _print_bad_lines(bad_lines)
    if as_json:
        print_json(summary)
    else:
        click.echo(_sentence(summary))


@contextmanager
def _open_bad_lines(path: Path | None) -> Iterator[BadLines]:
    if path is None:
        yield BadLines(None)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        yield BadLines(file)


async def _import(
    file: BinaryIO, bad_lines: BadLines, options: Options, db: Database
) -> Summary | None:
    """None, if it was stopped by a signal."""
    with create_progress() as progress:
        async with move_on_when(wait_for_signal):
            return await AddressImport(db, file, bad_lines, progress).run(options)
    return None


def _print_bad_lines(bad_lines: BadLines) -> None:
    for line, reason in bad_lines.kept:
        click.echo(f"line {line}: {reason}", err=True)
    if more := bad_lines.count - len(bad_lines.kept):
        click.echo(f"… and {more} more", err=True)


def _sentence(summary: Summary) -> str:
    if summary.already_imported_at is not None:
        day = summary.already_imported_at.astimezone()
        return f"already imported on {day:%Y-%m-%d %H:%M:%S}; --again imports it once more"
    before = f" ({summary.rows_before} before)" if summary.rows_before else ""
    return (
        f"{summary.rows_imported} rows imported{before} from column {summary.column},"
        f" {summary.bad_lines} bad lines, {summary.seconds:.1f} s"
    )
