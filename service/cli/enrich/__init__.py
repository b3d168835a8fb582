"""`enrich …`: addresses into `job_advertisement`, checked, and what was found out about them."""

import click

from service.cli.enrich.import_file import import_file
from service.cli.enrich.run import run
from service.cli.enrich.status import status


@click.group()
def enrich() -> None:
    """Import e-mail addresses, check them, and see what was found out about them."""


for command in (import_file, run, status):
    enrich.add_command(command)
