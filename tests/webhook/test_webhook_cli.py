"""`python -m service webhook`: what waits, what was given up, and how it is sent after all."""

import json

import pytest
import trio
from click.testing import CliRunner

from service.cli.webhook import webhook
from service.db.outbox import Event, claim_due, complete_delivery, fail_delivery
from service.db.pool import Database
from service.health import Health
from service.loops.webhooks import Webhooks
from service.webhook import WebhookSender
from tests.scripted_http import Reply, ScriptedHttp
from tests.system.test_cli import failure, run, run_all, succeed
from tests.webhook.events import SECRET, add_event, events


async def end_claims(db: Database, error: str | None) -> None:
    """All that is due is delivered, or with an error given up."""
    async with db.connection() as conn:
        for one in await claim_due(conn, 10):
            if error is None:
                await complete_delivery(conn, one)
            else:
                await fail_delivery(conn, one, error, delay_seconds=None)


@pytest.fixture
async def made(db: Database) -> list[Event]:
    """One delivered, two given up, one waiting."""
    await add_event(db)
    await end_claims(db, None)
    for _ in range(2):
        await add_event(db)
    await end_claims(db, "answered with \x1b[2J 500")
    await add_event(db)
    return await events(db)


def by_state(output: str) -> list[tuple[int, str]]:
    return [(row["id"], row["state"]) for row in json.loads(output)]


async def test_it_shows_what_is_not_delivered(database_url: str, made: list[Event]) -> None:
    listing = ["webhook", "list"]
    results = run_all(
        [[*listing, "--json"], [*listing, "--all", "--json"], listing], DATABASE_URL=database_url
    )
    assert [(result.returncode, result.stderr) for result in results] == [(0, "")] * 3
    open_, everything, table = (result.stdout for result in results)
    expected = [(row.id, row.state) for row in made]
    assert [state for _, state in expected] == ["delivered", "given up", "given up", "waiting"]
    assert by_state(open_) == expected[1:]
    assert by_state(everything) == expected
    row = json.loads(open_)[0]
    assert (row["attempts"], row["event_id"]) == (1, made[1].event_id)
    assert row["last_error"] == "answered with \x1b[2J 500"
    assert made[1].event_id in table
    assert "given up" in table
    assert "\x1b" not in table


async def test_what_was_given_up_is_sent_after_all(
    db: Database, database_url: str, made: list[Event]
) -> None:
    variables = {"DATABASE_URL": database_url}
    first = str(made[1].id)
    assert succeed("webhook", "retry", first, **variables) == "1 due now\n"
    states = [event.state for event in await events(db)]
    assert states == ["delivered", "waiting", "given up", "waiting"]
    assert succeed("webhook", "retry", "--all", **variables) == "1 due now\n"
    with ScriptedHttp(Reply(200)) as server:
        sender = WebhookSender(server.url, SECRET, allow_private=True)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                await Webhooks(db, sender, Health()).deliver_due_once(nursery)
    sent = {request.headers["webhook-id"] for request in server.requests}
    assert sent == {event.event_id for event in made[1:]}
    assert json.loads(succeed("webhook", "list", "--json", **variables)) == []


async def test_ids_that_cannot_be_retried_change_nothing(
    db: Database, database_url: str, made: list[Event]
) -> None:
    delivered, given_up = str(made[0].id), str(made[1].id)
    for wrong in (delivered, "4711"):
        result = run("webhook", "retry", given_up, wrong, DATABASE_URL=database_url)
        assert failure(result) == f"there is no undelivered event {wrong} (see: webhook list)"
    assert await events(db) == made


@pytest.mark.parametrize("arguments", [[], ["--all", "7"], ["seven"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(webhook, ["retry", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr
