"""The status: each state that a row can be in, domains, and imports that are not finished."""

import pytest

from service.db.enrich_status import DomainCounts, EnrichStatus, count_due, fetch_status
from service.db.pool import Database

# In the order of the columns: verified, reason (null: never checked), claimed and due so many
# seconds from now.
_ROWS = """
    INSERT INTO job_advertisement
        (email, email_verified, email_check, email_check_claimed_at, email_check_not_before)
    SELECT 'a@example.com', v.verified, jsonb_build_object('reason', v.reason),
           now() + make_interval(secs => v.claimed),
           coalesce(now() + make_interval(secs => v.due), '-infinity')
    FROM (VALUES
        (true, 'mx', NULL::float8, NULL::float8), (true, 'mx', NULL, NULL),
        (true, 'address_record', NULL, NULL), (false, 'syntax', NULL, NULL),
        (NULL, 'dns_timeout', NULL, 60), (NULL, 'dns_timeout', NULL, 30),
        (NULL, 'api_error', NULL, 90), (NULL, 'dns_timeout', NULL, -1),
        (NULL, 'mx', -10, NULL), (NULL, 'dns_timeout', -1000, NULL)
    ) AS v(verified, reason, claimed, due)
"""
_UNCHECKED = "INSERT INTO job_advertisement (email) VALUES ('a@example.com'), (NULL)"
_MANUALLY = "INSERT INTO job_advertisement (email_verified) VALUES (true)"
_DOMAINS = """
    INSERT INTO email_domain
        (domain, verdict, reason, detail, evidence, checked_at, expires_at, claimed_at)
    VALUES ('a.example.com', 'valid', 'mx', 'it does', '{}', now(), now() + interval '1 h', NULL),
           ('b.example.com', 'valid', 'mx', 'it does', '{}', now(), now(), NULL),
           ('c.example.com', 'valid', 'mx', 'it does', '{}', now(), now(), now()),
           ('d.example.com', NULL, NULL, NULL, NULL, NULL, NULL, now()),
           ('e.example.com', NULL, NULL, NULL, NULL, NULL, NULL, now() - interval '1 h')
"""
_IMPORTS = """
    INSERT INTO enrich_import (file_sha256, lines_done, rows_stored, finished_at)
    VALUES (sha256('a'), 7, 5, NULL), (sha256('b'), 7, 7, now())
"""


async def status(db: Database) -> EnrichStatus:
    async with db.connection() as conn:
        return await fetch_status(conn, row_claim_seconds=900, domain_claim_seconds=20)


async def test_of_nothing_there_is_nothing(db: Database) -> None:
    assert await status(db) == EnrichStatus([], DomainCounts(0, 0, 0), [])


@pytest.fixture
async def found(db: Database) -> EnrichStatus:
    async with db.transaction() as conn:
        for statement in (_ROWS, _UNCHECKED, _MANUALLY, _DOMAINS, _IMPORTS):
            await conn.execute(statement)
    return await status(db)


async def test_each_row_is_in_one_state(found: EnrichStatus) -> None:
    assert {(share.state, share.reason): share.rows for share in found.shares} == {
        ("valid", "mx"): 2,
        ("valid", "address_record"): 1,
        ("valid", None): 1,
        ("invalid", "syntax"): 1,
        ("waiting", "dns_timeout"): 2,
        ("waiting", "api_error"): 1,
        ("due_again", None): 1,
        ("never_checked", None): 2,
        ("being_checked", None): 1,
        ("claimed_too_long", None): 1,
    }
    assert (found.rows_in("valid"), found.rows_in("waiting")) == (4, 3)


async def test_those_that_a_claim_would_take_are_due(db: Database, found: EnrichStatus) -> None:
    async with db.connection() as conn:
        due = await count_due(conn, row_claim_seconds=900)
    assert due == 4
    states = ("due_again", "never_checked", "claimed_too_long")
    assert due == sum(share.rows for share in found.shares if share.state in states)


async def test_those_that_wait_say_until_when(db: Database, found: EnrichStatus) -> None:
    (now,) = (await db.fetch("SELECT now()"))[0]
    waiting = {one.reason: one.next_due_at for one in found.shares if one.state == "waiting"}
    seconds = {
        reason: (due - now).total_seconds() for reason, due in waiting.items() if due is not None
    }
    assert 20 < seconds["dns_timeout"] < 31
    assert 80 < seconds["api_error"] < 91
    assert {one.next_due_at for one in found.shares if one.state != "waiting"} == {None}


async def test_domains_and_imports_that_are_not_finished(found: EnrichStatus) -> None:
    assert found.domains == DomainCounts(known=3, fresh=1, being_asked=2)
    (unfinished,) = found.unfinished_imports
    assert (unfinished.lines_done, unfinished.rows_stored) == (7, 5)
    assert unfinished.file_sha256.startswith("ca978112ca1bbdca")
