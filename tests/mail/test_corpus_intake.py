"""Every mail of the shared corpus through a real Dovecot: none is lost, and each becomes the
request that its raw bytes give."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from service.db.requests import suffixed_ref
from service.mail.message import request_from_raw
from service.model import Limits, NewRequest
from tests.mail.station import Station, open_station
from tests.servers import Dovecot

FOLDER = Path(__file__).parents[3] / "shared" / "cases"
MAILS = sorted([*FOLDER.glob("corpus/*.eml"), *FOLDER.glob("fixtures/*.eml")])
RECEIVED_AT = datetime(2026, 3, 2, 9, 30, 15, tzinfo=UTC)
LIMITS = Limits(max_file_bytes=26_214_400, inline_image_bytes=51_200)
# IMAP allows no NUL in a literal (RFC 3501 section 9); this is what Dovecot sends in its place.
NUL_ON_THE_WIRE = b"\x80"
# Broken multiparts in which Dovecot finds other parts, and the reason.
READ_DIFFERENTLY = {
    "james-mime4j--double-semicolon.eml": "';;' hides the boundary: it shows one empty text",
    "mail-parser--007-2.eml": "'--ab' counts as a delimiter of the boundary 'a'",
    "mail-parser--016.eml": "boundaries that are alike in their first 80 octets are one to it",
}

STORED = """
    SELECT r.*, (SELECT json_agg(json_build_array(part_id, filename, content_type, size_bytes,
                                                  sha256, verdict, verdict_reason) ORDER BY a.id)
                 FROM attachment a WHERE a.request_id = r.id)::text AS attachments
    FROM request r ORDER BY r.id
"""

pytestmark = pytest.mark.skipif(not MAILS, reason="the shared corpus ../shared/cases is not there")


@asynccontextmanager
async def polled_corpus(
    database_url: str, dovecot: Dovecot
) -> AsyncIterator[tuple[Station, str, Counter[str]]]:
    """A mailbox with all the mails, polled once; (station, address, outcomes)."""
    user = dovecot.new_user()
    dovecot.write_maildir(user, [path.read_bytes() for path in MAILS], internaldate=RECEIVED_AT)
    with trio.fail_after(30):
        async with open_station(database_url, imap_timeout_seconds=20) as station:
            await station.add(dovecot.imap_port, user)
            report = await station.poll(user)
            assert report.error is None
            yield station, user, report.counts


def find_row(rows: Sequence[Any], request: NewRequest) -> Any:
    """The row of this very mail, under its own ref or the one of a reused id; or None."""
    fingerprint = request.content_fingerprint
    refs = (request.source_ref, suffixed_ref(request.source_ref, fingerprint))
    found = (row for row in rows if row["source_ref"] in refs)
    return next((row for row in found if row["content_fingerprint"] == fingerprint), None)


async def test_every_mail_is_stored_or_in_quarantine_with_a_reason(
    database_url: str, dovecot: Dovecot
) -> None:
    async with polled_corpus(database_url, dovecot) as (station, _, counts):
        rows = await station.rows(STORED)
        quarantined = await station.rows("SELECT error FROM quarantine")
    assert counts["stored"] + counts["duplicate"] + counts["quarantined"] == len(MAILS)
    assert (len(rows), len(quarantined)) == (counts["stored"], counts["quarantined"])
    assert all(row["error"] for row in quarantined)
    for row in rows:
        for *_, verdict, reason in json.loads(row["attachments"]):
            assert verdict == "extract" or reason


async def test_each_mail_is_the_request_that_its_raw_bytes_give(
    database_url: str, dovecot: Dovecot
) -> None:
    async with polled_corpus(database_url, dovecot) as (station, _, _):
        rows = await station.rows(STORED)
    for path in MAILS:
        if path.name in READ_DIFFERENTLY:
            continue
        raw = path.read_bytes().replace(b"\0", NUL_ON_THE_WIRE)
        request = request_from_raw(raw, 1, RECEIVED_AT, LIMITS)
        row = find_row(rows, request)
        assert row is not None, path.name
        for column in ("message_id", "subject", "sender", "sent_at", "raw_date", "body_text"):
            assert row[column] == getattr(request, column), path.name
        assert row["received_at"] == RECEIVED_AT, path.name
        assert json.loads(row["recipients"]) == list(request.recipients), path.name
        assert json.loads(row["attachments"]) == [
            [
                one.part_id,
                one.filename,
                one.content_type,
                one.size_bytes,
                one.sha256,
                one.verdict.value,
                one.verdict_reason,
            ]
            for one in request.attachments
        ], path.name


async def test_the_corpus_is_stored_once(database_url: str, dovecot: Dovecot) -> None:
    async with polled_corpus(database_url, dovecot) as (station, user, _):
        stored = await station.rows(STORED)
        assert (await station.poll(user)).counts == {}
        dovecot.change_uidvalidity(user)
        report = await station.poll(user)
        assert (report.counts, report.error) == ({"duplicate": len(MAILS)}, None)
        assert await station.rows(STORED) == stored
