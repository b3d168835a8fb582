"""The shared limiter: a burst, then one request an interval, whoever asks and how many at once."""

import pytest
import trio

from service.db.pool import Database
from service.db.rate_limits import Allowance, decide_allowance, take_request


async def take(db: Database, key: str = "a", limit: int = 5) -> Allowance:
    async with db.connection() as conn:
        return await take_request(conn, key, limit)


async def let_time_pass(db: Database, seconds: float) -> None:
    async with db.connection() as conn:
        await conn.execute("UPDATE rate_limit SET tat = tat - make_interval(secs => $1)", seconds)


async def test_a_burst_is_granted_up_to_the_limit(db: Database) -> None:
    allowances = [await take(db) for _ in range(7)]
    assert [one.is_granted for one in allowances] == [True] * 5 + [False] * 2
    assert [one.remaining for one in allowances] == [4, 3, 2, 1, 0, 0, 0]
    assert allowances[0].reset_seconds == 12
    assert allowances[4].reset_seconds == 60
    assert allowances[5].retry_after_seconds == 12


async def test_a_refused_request_does_not_push_the_next_one_away(db: Database) -> None:
    for _ in range(20):
        await take(db)
    await let_time_pass(db, 12)
    assert (await take(db)).is_granted
    assert not (await take(db)).is_granted


async def test_after_a_minute_all_of_it_is_there_again(db: Database) -> None:
    for _ in range(6):
        await take(db)
    await let_time_pass(db, 60)
    assert [(await take(db)).is_granted for _ in range(6)] == [True] * 5 + [False]


async def test_keys_do_not_share(db: Database) -> None:
    for _ in range(6):
        await take(db)
    assert (await take(db, "b")).is_granted


@pytest.mark.parametrize("limit", [1, 5])
async def test_of_many_at_once_exactly_the_limit_is_granted(db: Database, limit: int) -> None:
    granted = []

    async def ask() -> None:
        granted.append((await take(db, limit=limit)).is_granted)

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(ask)
    assert granted.count(True) == limit


async def test_a_lower_limit_holds_at_once(db: Database) -> None:
    for _ in range(5):
        await take(db, limit=100)
    assert (await take(db, limit=30)).remaining == 27


def test_the_next_request_is_never_said_to_be_possible_before_it_is() -> None:
    refused = decide_allowance(False, 59.5, 30)
    assert (refused.remaining, refused.reset_seconds, refused.retry_after_seconds) == (0, 60, 2)
