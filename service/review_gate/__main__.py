"""`python -m service.review_gate PATH…`: 0 nothing wrong, 1 errors found, 2 wrong usage."""

import sys
from io import TextIOWrapper

import click

from service.review_gate.findings import Finding
from service.review_gate.gate import check_file
from service.review_gate.report import as_github, as_json, as_text
from service.review_gate.sources import find_files

_FORMATS = {"text": as_text, "github": as_github, "json": as_json}


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option(
    "--format",
    "chosen",
    type=click.Choice(list(_FORMATS)),
    default="text",
    show_default=True,
    help="For people, as annotations of a pull request, or for programs.",
)
@click.pass_context
def main(context: click.Context, paths: tuple[str, ...], chosen: str) -> None:
    """Find what is awaited inside database transactions, in Python files and folders of them.

    A line with the comment `# review-gate: ok — reason` passes, and is listed with the reason.
    What only needs the eyes of a person, a file with transactions and an HTTP, mail or cloud
    client, is shown and is no error.
    """
    findings: list[Finding] = []
    files = 0
    for found in find_files(paths):
        if isinstance(found, Finding):
            findings.append(found)
        else:
            files += 1
            findings += check_file(found)
    if isinstance(sys.stdout, TextIOWrapper):  # which may be ASCII, unlike what is shown
        sys.stdout.reconfigure(errors="backslashreplace")
    click.echo(_FORMATS[chosen](findings, files))
    context.exit(int(any(one.kind == "error" for one in findings)))


if __name__ == "__main__":
    main(prog_name="python -m service.review_gate")
