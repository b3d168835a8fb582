"""The poller without servers: what a failure leads to, and the cadence in simulated hours."""

import itertools
import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import trio
import trio.testing

from service.db.mailboxes import Claim
from service.db.pool import Database
from service.errors import (
    ConnectionLost,
    CredentialsRefused,
    DatabaseUnreachable,
    MailboxThrottled,
    MailboxUnreachable,
)
from service.health import Health
from service.loops.poller import Failure, MailboxPoller, Poller, decide_failure
from service.model import ImapConnection
from service.settings import Settings

EPOCH = datetime(2026, 3, 2, tzinfo=UTC)
CONNECTION = ImapConnection("mail.example.com", 993, "implicit", "anna")
CLAIM = Claim(
    mailbox_id=1,
    address="anna@example.com",
    connection=CONNECTION,
    secret=b"token",
    poll_interval_seconds=120,
    stamp=EPOCH,
    ingest_since=None,
    cursor=None,
    state="active",
    consecutive_failures=0,
    has_quarantine=False,
)


def throttled(seconds: float | None = None) -> MailboxThrottled:
    return MailboxThrottled("come back later", retry_after_seconds=seconds)


LOST, REFUSED = ConnectionLost("gone"), CredentialsRefused("wrong password")


@pytest.mark.parametrize(
    ("changes", "error", "progressed", "failure"),
    [
        # It doubles from the interval to an hour.
        ({}, LOST, False, Failure(1, "active", 120)),
        ({"consecutive_failures": 1}, LOST, False, Failure(2, "active", 240)),
        ({"consecutive_failures": 4}, LOST, False, Failure(5, "active", 1920)),
        ({"consecutive_failures": 5}, LOST, False, Failure(6, "active", 3600)),
        ({"consecutive_failures": 100_000}, LOST, False, Failure(100_001, "active", 3600)),
        ({"poll_interval_seconds": 1}, LOST, False, Failure(1, "active", 1)),
        ({"poll_interval_seconds": 86_400}, LOST, False, Failure(1, "active", 3600)),
        # Whatever else goes wrong counts alike.
        ({}, MailboxUnreachable("no route"), False, Failure(1, "active", 120)),
        ({"consecutive_failures": 1}, ValueError("a bug"), False, Failure(2, "active", 240)),
        # Progress starts it anew.
        ({"consecutive_failures": 7}, LOST, True, Failure(1, "active", 120)),
        # Throttling: no sooner than the server says, never a wrong password.
        ({}, throttled(), False, Failure(1, "active", 120)),
        ({}, throttled(297.456), False, Failure(1, "active", 297.456)),
        ({}, throttled(7), False, Failure(1, "active", 120)),
        ({"consecutive_failures": 9}, throttled(7), False, Failure(10, "active", 3600)),
        ({}, throttled(7200), True, Failure(1, "active", 7200)),
        # Refused credentials.
        ({}, REFUSED, False, Failure(1, "needs_reauth", 3600)),
        (
            {"state": "needs_reauth", "consecutive_failures": 3},
            REFUSED,
            False,
            Failure(4, "needs_reauth", 3600),
        ),
        ({"state": "needs_reauth"}, LOST, False, Failure(1, "needs_reauth", 120)),
        ({"state": "needs_reauth"}, throttled(), False, Failure(1, "needs_reauth", 120)),
    ],
)
def test_what_a_failure_leads_to(
    changes: dict[str, Any], error: Exception, progressed: bool, failure: Failure
) -> None:
    assert decide_failure(replace(CLAIM, **changes), error, progressed=progressed) == failure


@dataclass
class Row:
    """A mailbox of the simulation; times in seconds since its beginning."""

    interval_seconds: float = 120
    poll_seconds: float = 1
    polled_at: float | None = None

    @property
    def due_at(self) -> float:
        return 0 if self.polled_at is None else self.polled_at + self.interval_seconds


class Table:
    """Stands in for the database under the simulated clock: a claim takes 10 to 100 ms."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self.rows = dict(rows)
        self.failing_commits = 0
        self._epoch = trio.current_time()
        self._random = random.Random(1)

    def now(self) -> float:
        return trio.current_time() - self._epoch

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Table"]:
        yield self
        await trio.lowlevel.checkpoint()
        if self.failing_commits:
            self.failing_commits -= 1
            raise DatabaseUnreachable("PostgreSQL cannot be reached: gone")

    def connection(self) -> AbstractAsyncContextManager["Table"]:
        return self.transaction()

    async def fetch(self, query: str, *args: int) -> list[dict[str, object]]:
        """`claim_due` has one argument, the limit; the watchdog finds nothing."""
        await trio.sleep(self._random.uniform(0.01, 0.1))
        due = [name for name, row in self.rows.items() if row.due_at <= self.now()]
        is_claim = "email_mailbox_config" in query
        return [self._claim(name) for name in due[: args[0]]] if is_claim else []

    def _claim(self, name: str) -> dict[str, object]:
        row = self.rows[name]
        row.polled_at = self.now()
        return {
            "id": 1,
            "address": name,
            "provider": "imap",
            "connection": json.dumps(asdict(CONNECTION)),
            "secret": b"token",
            "poll_interval_seconds": row.interval_seconds,
            "last_polled_at": EPOCH + timedelta(seconds=self.now()),
            "ingest_since": None,
            "cursor": None,
            "state": "active",
            "consecutive_failures": 0,
            "has_quarantine": False,
        }

    async def fetchval(self, _query: str) -> float | None:
        """`seconds_until_due`."""
        await trio.sleep(0.01)
        return min((row.due_at - self.now() for row in self.rows.values()), default=None)


class Simulation:
    """A poller over a `Table`, with polls that only take their time."""

    def __init__(self, rows: Mapping[str, Row], **settings: Any) -> None:
        self.table = Table(rows)
        self.polled_at: defaultdict[str, list[float]] = defaultdict(list)
        self.failing: set[str] = set()
        self.most_at_once = 0
        self.health = Health()
        self._at_once = 0
        self._settings = Settings.load(**settings)

    async def poll(self, claim: Claim) -> None:
        self.polled_at[claim.address].append(self.table.now())
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await trio.sleep(self.table.rows[claim.address].poll_seconds)
            if claim.address in self.failing:
                raise ValueError("a bug")
        finally:
            self._at_once -= 1

    async def run(self, seconds: float) -> None:
        database, mailboxes = cast(Database, self.table), cast(MailboxPoller, self)
        with trio.move_on_after(seconds):
            await Poller(database, self._settings, mailboxes, self.health).run()

    def gaps(self, name: str) -> list[float]:
        times = self.polled_at[name]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


async def test_a_mailbox_is_late_by_seconds_and_never_by_an_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The trap: stamped late in one cycle, not due yet in the next one, polled every 240 s."""
    simulation = Simulation({"anna@example.com": Row()})
    await simulation.run(12 * 3600)
    gaps = simulation.gaps("anna@example.com")
    assert len(gaps) > 350
    assert min(gaps) >= 119.99
    assert max(gaps) < 121


async def test_each_mailbox_keeps_its_own_interval(autojump_clock: trio.testing.MockClock) -> None:
    intervals = [7, 30, 119, 120, 600, 2000]
    rows = {f"every{seconds}@example.com": Row(seconds, 0.5) for seconds in intervals}
    simulation = Simulation(rows)
    await simulation.run(4100)
    for name, row in rows.items():
        assert simulation.gaps(name), name
        assert min(simulation.gaps(name)) >= row.interval_seconds - 0.01
        assert max(simulation.gaps(name)) < row.interval_seconds + 1


async def test_a_new_mailbox_is_found_within_an_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    simulation = Simulation({}, poll_interval_seconds=60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(simulation.run, 200)
        await trio.sleep(65)
        simulation.table.rows["anna@example.com"] = Row()
    (first, *_) = simulation.polled_at["anna@example.com"]
    assert 65 < first < 125


async def test_a_slow_mailbox_delays_no_other(autojump_clock: trio.testing.MockClock) -> None:
    rows = {"slow@example.com": Row(poll_seconds=100), "fast@example.com": Row(poll_seconds=1)}
    simulation = Simulation(rows, poll_concurrency=2)
    await simulation.run(3600)
    assert max(simulation.gaps("fast@example.com")) < 121
    assert max(simulation.gaps("slow@example.com")) < 121


async def test_mailboxes_are_polled_side_by_side_up_to_the_cap(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rows = {f"user{number}@example.com": Row(poll_seconds=3) for number in range(25)}
    simulation = Simulation(rows, poll_concurrency=10, poll_claim_limit=10)
    await simulation.run(100)
    assert simulation.most_at_once == 10
    starts = sorted(times[0] for times in simulation.polled_at.values())
    assert len(starts) == 25
    assert starts[9] < 1
    assert starts[19] < 4
    assert starts[24] < 8


async def test_the_claim_limit_bounds_a_claim_and_not_the_cycle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rows = {f"user{number}@example.com": Row() for number in range(9)}
    simulation = Simulation(rows, poll_claim_limit=2)
    await simulation.run(50)
    assert sorted(simulation.polled_at) == sorted(rows)
    assert max(times[0] for times in simulation.polled_at.values()) < 1


@pytest.mark.expects_errors
async def test_a_poll_that_fails_stops_neither_its_neighbours_nor_the_loop(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    rows = {f"user{number}@example.com": Row(60) for number in range(4)}
    simulation = Simulation(rows, poll_concurrency=2)
    simulation.failing = {"user0@example.com", "user1@example.com", "user2@example.com"}
    await simulation.run(590)
    assert {name: len(times) for name, times in simulation.polled_at.items()} == dict.fromkeys(
        rows, 10
    )
    assert "ValueError: a bug" in caplog.text


async def test_a_claim_whose_commit_fails_costs_no_slot(
    autojump_clock: trio.testing.MockClock,
) -> None:
    simulation = Simulation({"anna@example.com": Row(10)}, poll_concurrency=2)
    simulation.table.failing_commits = 3
    await simulation.run(200)
    assert len(simulation.polled_at["anna@example.com"]) >= 10


async def test_once_stopping_nothing_is_claimed_and_polls_under_way_come_to_their_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rows = {f"user{number}@example.com": Row(10, poll_seconds=4) for number in range(3)}
    simulation = Simulation(rows)
    ended_at: list[float] = []

    async def run() -> None:
        await simulation.run(1000)
        ended_at.append(simulation.table.now())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.sleep(12)
        simulation.health.stopping.set()
    assert 14 < ended_at[0] < 15
    assert {len(times) for times in simulation.polled_at.values()} == {2}
