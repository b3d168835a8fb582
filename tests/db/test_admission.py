"""What lets a request pass: a burst, then one an interval, whoever asks and how many at once."""

import pytest
import trio

from service.db.admission import Admission, Allowance, admit, decide_allowance
from service.db.mailboxes import insert_mailbox
from service.db.pool import Database
from service.db.tokens import MESSAGES_INDEX, create_token
from service.model import ImapConnection


@pytest.fixture
async def tokens(db: Database) -> list[str]:
    """Two of them."""
    made = []
    for name, mailboxes in (("a", None), ("b", ["Anna@example.com"])):
        async with db.transaction() as conn:
            made.append(
                await create_token(
                    conn, name=name, scopes=[MESSAGES_INDEX], mailboxes=mailboxes, expires_at=None
                )
            )
    return made


async def ask(db: Database, token: str, limit: int = 5, address: str = "") -> Admission:
    admission = await admit(db, token, requests_per_minute=limit, address=address)
    assert admission is not None
    return admission


async def take(db: Database, token: str, limit: int = 5) -> Allowance:
    return (await ask(db, token, limit)).allowance


async def let_time_pass(db: Database, seconds: float) -> None:
    async with db.connection() as conn:
        await conn.execute("UPDATE rate_limit SET tat = tat - make_interval(secs => $1)", seconds)


async def test_a_burst_is_granted_up_to_the_limit(db: Database, tokens: list[str]) -> None:
    allowances = [await take(db, tokens[0]) for _ in range(7)]
    assert [one.is_granted for one in allowances] == [True] * 5 + [False] * 2
    assert [one.remaining for one in allowances] == [4, 3, 2, 1, 0, 0, 0]
    assert allowances[0].reset_seconds == 12
    assert allowances[4].reset_seconds == 60
    assert allowances[5].retry_after_seconds == 12


async def test_a_refused_request_does_not_push_the_next_one_away(
    db: Database, tokens: list[str]
) -> None:
    for _ in range(20):
        await take(db, tokens[0])
    await let_time_pass(db, 12)
    assert (await take(db, tokens[0])).is_granted
    assert not (await take(db, tokens[0])).is_granted


async def test_after_a_minute_all_of_it_is_there_again(db: Database, tokens: list[str]) -> None:
    for _ in range(6):
        await take(db, tokens[0])
    await let_time_pass(db, 60)
    assert [(await take(db, tokens[0])).is_granted for _ in range(6)] == [True] * 5 + [False]


async def test_keys_do_not_share(db: Database, tokens: list[str]) -> None:
    for _ in range(6):
        await take(db, tokens[0])
    assert (await take(db, tokens[1])).is_granted


@pytest.mark.parametrize("limit", [1, 5])
async def test_of_many_at_once_exactly_the_limit_is_granted(
    db: Database, tokens: list[str], limit: int
) -> None:
    await take(db, tokens[0], limit)
    await let_time_pass(db, 3600)
    allowances = []

    async def ask_once() -> None:
        allowances.append(await take(db, tokens[0], limit))

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(ask_once)
    assert [one.is_granted for one in allowances].count(True) == limit
    refused = [one for one in allowances if not one.is_granted]
    assert {one.remaining for one in refused} == {0}
    assert all(60 - 60 / limit <= one.reset_seconds <= 60 for one in refused)


async def test_a_lower_limit_holds_at_once(db: Database, tokens: list[str]) -> None:
    for _ in range(5):
        await take(db, tokens[0], limit=100)
    assert (await take(db, tokens[0], limit=30)).remaining == 27


@pytest.mark.parametrize("limit", [1, 7, 30, 59, 6000])
async def test_the_first_request_leaves_all_but_one(
    db: Database, tokens: list[str], limit: int
) -> None:
    assert (await take(db, tokens[0], limit)).remaining == limit - 1


def test_the_next_request_is_never_said_to_be_possible_before_it_is() -> None:
    refused = decide_allowance(False, 59.5, 30)
    assert (refused.remaining, refused.reset_seconds, refused.retry_after_seconds) == (0, 60, 2)


async def test_the_mailbox_comes_along_whatever_the_case_of_its_address(
    db: Database, tokens: list[str]
) -> None:
    connection = ImapConnection("mail.example.com", 993, "implicit", "anna")
    async with db.transaction() as conn:
        await insert_mailbox(
            conn,
            address="anna@example.com",
            connection=connection,
            secret=b"token",
            poll_interval_seconds=120,
            ingest_all=False,
            ingest_since=None,
        )
    access = (await ask(db, tokens[0], address="ANNA@example.com")).access
    assert access is not None
    assert (access.address, access.connection, access.secret) == (
        "anna@example.com",
        connection,
        b"token",
    )
    for address in ("bob@example.com", "", "anna@example.com\n", "a\0b\udc80"):
        assert (await ask(db, tokens[0], 1000, address)).access is None


async def test_addresses_are_covered_whatever_their_case(db: Database, tokens: list[str]) -> None:
    everything, one = [await ask(db, token) for token in tokens]
    assert everything.covers("bob@example.com")
    assert one.covers("anna@EXAMPLE.com")
    assert not one.covers("bob@example.com")
