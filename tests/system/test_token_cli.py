"""`token …` as real processes: the token alone on standard output, and once only."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from service.cli import cli
from tests.system.test_cli import failure, run, succeed

CREATE = ("token", "create", "--scope", "messages:index", "--name")
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).isoformat()


def test_a_token_from_its_creation_to_its_end(database_url: str) -> None:
    environment = {"DATABASE_URL": database_url}
    made = run(*CREATE, "tests", "--mailbox", "a@example.com", "--expires", TOMORROW, **environment)
    assert made.returncode == 0
    assert made.stderr == "mailroom: there is no mailbox a@example.com yet\n"
    token = made.stdout.removesuffix("\n")
    assert token.startswith("mr_")
    assert len(token) > 40

    listed = succeed("token", "list", "--json", **environment)
    (row,) = json.loads(listed)
    assert (row["name"], row["scopes"], row["mailboxes"], row["state"]) == (
        "tests",
        ["messages:index"],
        ["a@example.com"],
        "active",
    )
    table = succeed("token", "list", **environment)
    assert "a@example.com" in table
    assert token not in listed + table

    assert succeed("token", "revoke", "tests", **environment) == "revoked tests (id 1)\n"
    assert json.loads(succeed("token", "list", "--json", **environment))[0]["state"] == "revoked"
    unknown = run("token", "revoke", "nobody", **environment)
    assert failure(unknown) == "there is no token nobody (see: token list)"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--name", "x"], "Missing option '--scope'"),
        (["--scope", "messages:index"], "Missing option '--name'"),
        (["--name", "x", "--scope", "messages:write"], "'messages:write' is not"),
        (["--name", " ", "--scope", "messages:index"], "must be text"),
        (["--name", "a\x1b[2J", "--scope", "messages:index"], "must be text"),
        (["--name", "x", "--scope", "messages:index", "--expires", "soon"], "is no ISO 8601 time"),
        (["--name", "x", "--scope", "messages:index", "--expires", "2020-01-01"], "in the past"),
        (["--name", "x", "--scope", "messages:index", "--mailbox", ""], "must be text"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(cli, ["token", "create", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr
