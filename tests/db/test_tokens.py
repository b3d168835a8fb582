"""Tokens: stored as a hash, found while they are valid, gone at once when revoked."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from service.db.admission import Admission, admit
from service.db.pool import Database
from service.db.tokens import (
    MESSAGES_INDEX,
    create_token,
    list_tokens,
    revoke_tokens,
)
from service.errors import MailroomError

TOMORROW = datetime.now(UTC) + timedelta(days=1)


async def create(
    db: Database,
    name: str = "tests",
    mailboxes: Sequence[str] | None = None,
    expires_at: datetime | None = None,
) -> str:
    async with db.transaction() as conn:
        return await create_token(
            conn, name=name, scopes=[MESSAGES_INDEX], mailboxes=mailboxes, expires_at=expires_at
        )


async def find(db: Database, token: str) -> Admission | None:
    return await admit(db, token, requests_per_minute=1000, address="nobody@example.com")


async def states(db: Database) -> list[tuple[str, str]]:
    async with db.connection() as conn:
        return [(one.name, one.state) for one in await list_tokens(conn)]


async def test_only_the_hash_of_a_token_is_stored(db: Database) -> None:
    token = await create(db)
    async with db.connection() as conn:
        row = await conn.fetchrow("SELECT *, api_token::text AS everything FROM api_token")
    assert row["token_sha256"] == hashlib.sha256(token.encode()).digest()
    assert token.startswith("mr_")
    assert token.removeprefix("mr_") not in row["everything"]


async def test_two_tokens_of_a_name_are_two(db: Database) -> None:
    first, second = await create(db), await create(db)
    assert first != second
    assert await find(db, first) is not None
    assert await find(db, second) is not None


@pytest.mark.parametrize("token", ["", "mr_", "mr_unknown", "ä\udc80", "\0", "x" * 100_000])
async def test_what_is_no_token_is_not_found(db: Database, token: str) -> None:
    await create(db)
    assert await find(db, token) is None


async def test_a_token_lasts_until_it_expires(db: Database) -> None:
    token = await create(db, expires_at=TOMORROW)
    assert await find(db, token) is not None
    async with db.connection() as conn:
        await conn.execute("UPDATE api_token SET expires_at = now()")
    assert await find(db, token) is None
    assert await states(db) == [("tests", "expired")]


async def test_all_tokens_of_a_name_or_the_one_of_an_id_are_revoked(db: Database) -> None:
    tokens = [await create(db, name) for name in ("a", "a", "b", "c")]
    async with db.transaction() as conn:
        assert len(await revoke_tokens(conn, "a")) == 2
        last = (await list_tokens(conn))[3]
        assert [one.name for one in await revoke_tokens(conn, str(last.id))] == ["c"]
    assert [await find(db, token) is not None for token in tokens] == [False, False, True, False]
    assert await states(db) == [
        ("a", "revoked"),
        ("a", "revoked"),
        ("b", "active"),
        ("c", "revoked"),
    ]


async def test_revoking_again_keeps_the_first_time(db: Database) -> None:
    await create(db, "a")
    async with db.connection() as conn:
        (first,) = await revoke_tokens(conn, "a")
        (again,) = await revoke_tokens(conn, "a")
    assert first.revoked_at == again.revoked_at


async def test_revoking_what_is_not_there_is_an_error(db: Database) -> None:
    async with db.connection() as conn:
        with pytest.raises(MailroomError, match="there is no token nobody"):
            await revoke_tokens(conn, "nobody")


async def test_the_last_use_is_stamped_at_most_once_a_minute(db: Database) -> None:
    token = await create(db)
    stamps = []
    for _ in range(3):
        await find(db, token)
        async with db.connection() as conn:
            stamps.append((await list_tokens(conn))[0].last_used_at)
    assert stamps[0] is not None
    assert stamps[0] == stamps[1] == stamps[2]
    async with db.connection() as conn:
        await conn.execute("UPDATE api_token SET last_used_at = now() - interval '61 seconds'")
    await find(db, token)
    async with db.connection() as conn:
        assert (await list_tokens(conn))[0].last_used_at > stamps[0]  # type: ignore[operator]
