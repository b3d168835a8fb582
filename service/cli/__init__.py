"""The command line: one module per group of sub-commands."""

import click

from service.cli.attachment import attachment
from service.cli.demo import demo
from service.cli.enrich import enrich
from service.cli.mailbox import mailbox
from service.cli.quarantine import quarantine
from service.cli.serve import migrate, serve
from service.cli.token import token
from service.cli.webhook import webhook


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="mailroom")
@click.pass_context
def cli(context: click.Context) -> None:
    """Mail intake over any number of replicas: every mail exactly once.

    Without a command: serve. Settings come from environment variables (see README.md); without
    DATABASE_URL an embedded PostgreSQL in SERVICE_DATA_DIR is used.
    """
    if context.invoked_subcommand is None:
        context.invoke(serve)


for command in (serve, migrate, mailbox, token, attachment, quarantine, webhook, enrich, demo):
    cli.add_command(command)
