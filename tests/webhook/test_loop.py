"""The webhook loop on a real database and over real HTTP: at least once, retried, given up."""

import json
import logging
from collections import Counter
from datetime import timedelta
from threading import Event as ThreadEvent

import pytest
import trio
from prometheus_client import REGISTRY
from standardwebhooks import Webhook

from service.db.outbox import EventClaim, claim_due
from service.db.pool import Database
from service.health import Health
from service.loops.webhooks import (
    CONCURRENCY,
    LOOK_SECONDS,
    RETRY_DELAYS_SECONDS,
    Webhooks,
    create_sender,
)
from service.settings import Settings
from service.webhook import WebhookSender
from tests.scripted_http import Drop, Hang, Reply, ScriptedHttp
from tests.servers import wait_until
from tests.webhook.events import SECRET, add_event, events, make_due, payloads


def loop(
    db: Database, server: ScriptedHttp, health: Health | None = None, *, timeout_seconds: float = 10
) -> Webhooks:
    sender = WebhookSender(
        f"{server.url}/hook?token=geheim",
        SECRET,
        allow_private=True,
        timeout_seconds=timeout_seconds,
    )
    return Webhooks(db, sender, health or Health())


async def look(one: Webhooks) -> None:
    """A look, and the end of all that it has found."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await one.deliver_due_once(nursery)


async def wait_for(server: ScriptedHttp, count: int) -> None:
    await trio.to_thread.run_sync(wait_until, lambda: len(server.requests) >= count)


def attempts(outcome: str) -> float:
    return REGISTRY.get_sample_value("mailroom_webhooks_total", {"outcome": outcome}) or 0


async def test_an_event_is_delivered_signed_and_once(db: Database) -> None:
    event = await add_event(db, subject="NUL-free but odd: \u2028 \x1b[2J 😀 \\u0000")
    delivered = attempts("delivered")
    with ScriptedHttp(Reply(200)) as server:
        await look(loop(db, server))
        await make_due(db)
        await look(loop(db, server))
    (request,) = server.requests
    assert request.headers["webhook-id"] == event.event_id
    assert [request.body.decode()] == await payloads(db)
    headers = dict(request.headers)
    assert Webhook(SECRET).verify(request.body, headers) == json.loads(request.body)
    (row,) = await events(db)
    assert (row.state, row.attempts) == ("delivered", 1)
    assert attempts("delivered") == delivered + 1


async def test_after_a_failure_it_comes_again_under_the_same_id_with_a_new_signature(
    db: Database,
) -> None:
    event = await add_event(db)
    with ScriptedHttp(Reply(500), Drop(), Reply(200)) as server:
        one = loop(db, server)
        await look(one)
        (row,) = await events(db)
        assert (row.state, row.attempts) == ("retrying", 1)
        assert row.last_error == "answered with 500 Internal Server Error"
        assert timedelta(seconds=4) < row.next_attempt_at - row.created_at < timedelta(seconds=20)
        await look(one)
        assert len(server.requests) == 1, "not before it is due"
        for _ in range(2):
            await make_due(db)
            await look(one)
    assert [request.headers["webhook-id"] for request in server.requests] == [event.event_id] * 3
    assert len({request.body for request in server.requests}) == 1
    for request in server.requests:
        Webhook(SECRET).verify(request.body, dict(request.headers))
    (row,) = await events(db)
    assert (row.state, row.attempts, row.last_error) == ("delivered", 3, None)


@pytest.mark.parametrize(("asked", "hours"), [("7200", 2), ("99999999", 24)])
async def test_a_receiver_that_asks_for_time_gets_it_within_reason(
    db: Database, asked: str, hours: int
) -> None:
    await add_event(db)
    with ScriptedHttp(Reply(429, headers={"Retry-After": asked})) as server:
        await look(loop(db, server))
    (row,) = await events(db)
    delay = row.next_attempt_at - row.created_at
    assert timedelta(hours=hours) <= delay < timedelta(hours=hours, minutes=1)


async def test_after_the_last_attempt_it_is_given_up_visibly(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    event = await add_event(db)
    before = attempts("given_up"), attempts("failed")
    with ScriptedHttp(Reply(302, headers={"Location": "https://example.com/"})) as server:
        one = loop(db, server)
        for _ in range(len(RETRY_DELAYS_SECONDS) + 3):
            await make_due(db)
            await look(one)
    assert len(server.requests) == len(RETRY_DELAYS_SECONDS) + 1
    (row,) = await events(db)
    assert (row.state, row.attempts) == ("given up", len(server.requests))
    assert attempts("given_up") == before[0] + 1
    assert attempts("failed") == before[1] + len(RETRY_DELAYS_SECONDS)
    lines = [record for record in caplog.records if record.name == "service.loops.webhooks"]
    assert {line.levelno for line in lines} == {logging.WARNING}
    last = lines[-1].getMessage()
    assert event.event_id in last
    assert f"given up; to send it after all: python -m service webhook retry {event.id}" in last
    assert "302 Found" in last
    assert "geheim" not in caplog.text


async def test_what_hangs_or_is_refused_is_a_failure_as_others(db: Database) -> None:
    await add_event(db)
    with ScriptedHttp(Hang()) as server:
        await look(loop(db, server, timeout_seconds=0.2))
    (row,) = await events(db)
    assert row.last_error == "no answer within 0.2 s"
    await make_due(db)
    refusing = WebhookSender("http://localhost/", SECRET, allow_private=False)
    await look(Webhooks(db, refusing, Health()))
    (row,) = await events(db)
    assert (row.state, row.attempts) == ("retrying", 2)
    assert "WEBHOOK_ALLOW_PRIVATE" in str(row.last_error)


async def take(db: Database) -> EventClaim:
    async with db.connection() as conn:
        (one,) = await claim_due(conn, 1)
    return one


async def test_a_crash_between_the_post_and_its_record_means_the_same_event_again(
    db: Database,
) -> None:
    event = await add_event(db)
    with ScriptedHttp(Reply(200)) as server:
        claim = await take(db)
        crashing = WebhookSender(server.url, SECRET, allow_private=True)
        await crashing.send(claim.event_id, claim.stamp, claim.payload)
        one = loop(db, server)
        await look(one)
        assert len(server.requests) == 1, "the claim may still be at work"
        await make_due(db)
        await look(one)
    first, second = server.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == event.event_id
    assert first.body == second.body
    (row,) = await events(db)
    assert row.state == "delivered"


async def test_a_delivery_that_lost_its_claim_changes_nothing(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.loops.webhooks")
    await add_event(db)
    late = await take(db)
    await make_due(db)
    await take(db)
    (held,) = await events(db)
    with ScriptedHttp(Reply(200), Reply(500)) as server:
        await loop(db, server).deliver(late)
        await loop(db, server).deliver(late)
    assert await events(db) == [held]
    assert caplog.text.count("was claimed again or removed in the meantime") == 2


async def test_two_loops_side_by_side_deliver_each_event_once(db: Database) -> None:
    made = [(await add_event(db)).event_id for _ in range(40)]
    with ScriptedHttp(Reply(200)) as server, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(loop(db, server).deliver_due_once, nursery)
    ids = Counter(request.headers["webhook-id"] for request in server.requests)
    assert ids == Counter(made)
    assert {event.state for event in await events(db)} == {"delivered"}


async def test_a_receiver_that_hangs_does_not_hold_up_the_cycle(db: Database) -> None:
    for _ in range(CONCURRENCY + 2):
        await add_event(db)
    with ScriptedHttp(Hang()) as server:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(LOOK_SECONDS + 3):
                await loop(db, server).deliver_due_once(nursery)
            await wait_for(server, CONCURRENCY)
            states = Counter(event.state for event in await events(db))
            assert states == {"sending": CONCURRENCY, "waiting": 2}
            nursery.cancel_scope.cancel()


async def test_a_stop_lets_deliveries_end_and_claims_nothing_new(db: Database) -> None:
    health, may_answer = Health(), ThreadEvent()
    event = await add_event(db)
    with ScriptedHttp(Reply(200, before=lambda: may_answer.wait(10))) as server:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(loop(db, server, health).run)
                await wait_for(server, 1)
                health.stopping.set()
                await add_event(db)
                may_answer.set()
    assert [request.headers["webhook-id"] for request in server.requests] == [event.event_id]
    assert [one.state for one in await events(db)] == ["delivered", "waiting"]
    assert [one.name for one in health.heartbeats] == ["webhooks"]


async def test_a_delivery_that_is_broken_off_is_given_back(db: Database) -> None:
    await add_event(db)
    with ScriptedHttp(Hang()) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop(db, server).run)
            await wait_for(server, 1)
            nursery.cancel_scope.cancel()
    assert server.hung_up == 1
    (row,) = await events(db)
    assert (row.state, row.attempts) == ("waiting", 0)


async def test_it_runs_by_the_settings(db: Database) -> None:
    health = Health()
    assert create_sender(Settings.load()) is None
    await add_event(db)
    with ScriptedHttp(Reply(200)) as server:
        settings = Settings.load(
            webhook_url=server.url, webhook_secret=SECRET, webhook_allow_private=True
        )
        sender = create_sender(settings)
        assert sender is not None
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Webhooks(db, sender, health).run)
                await wait_for(server, 1)
                await add_event(db)
                await wait_for(server, 2)
                health.stopping.set()
    assert {event.state for event in await events(db)} == {"delivered"}


class CrashingSender(WebhookSender):
    """One with a fault of its own."""

    async def send(self, *_: object) -> None:
        raise ValueError("a fault")


@pytest.mark.expects_errors
async def test_a_crash_is_a_failed_attempt(db: Database) -> None:
    await add_event(db)
    await look(
        Webhooks(db, CrashingSender("http://h.example.com", SECRET, allow_private=True), Health())
    )
    (row,) = await events(db)
    assert (row.state, row.attempts, row.last_error) == ("retrying", 1, "a fault")
