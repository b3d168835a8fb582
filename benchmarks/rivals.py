"""The rivals of `throughput`, each a process of its own as the service is one.

`python -m benchmarks.rivals bare|imap_tools DATABASE_URL IMAP_PORT PASSWORD USER…` reads the
mailboxes one after the other into the database and prints the seconds, imports not counted.
Values that only parsing or hashing would give are constants of the same length.
"""

import asyncio
import binascii
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import asyncpg
import psycopg
from imap_tools import MailBoxUnencrypted, MailMessage
from imapclient import IMAPClient
from psycopg.types.json import Jsonb

HOST = "127.0.0.1"
BATCH_MESSAGES = 200
SHA256 = "0" * 64

_INSERT_REQUESTS = """
    INSERT INTO request (source_ref, message_id, content_fingerprint, subject, sender, recipients,
        sent_at, raw_date, received_at, body_text)
    SELECT ref, ref, $3, $4, $5, $6::jsonb, received_at, $7, received_at, body_text
    FROM unnest($1::text[], $2::timestamptz[], $8::text[]) AS u(ref, received_at, body_text)
    RETURNING id
"""
_INSERT_ATTACHMENTS = """
    INSERT INTO attachment (request_id, kind, part_id, filename, content_type, size_bytes, sha256,
        verdict, status, content)
    SELECT id, CASE WHEN content IS NULL THEN 'body' ELSE 'file' END,
        CASE WHEN content IS NOT NULL THEN '2' END, 'offer.pdf', 'application/pdf',
        coalesce(length(content), 0), $3, 'extract', 'pending', content
    FROM unnest($1::bigint[], $2::bytea[]) AS u(id, content)
"""


async def run_bare(url: str, port: int, password: str, users: Sequence[str]) -> None:
    """The bytes and the rows of the service: IMAPClient, asyncpg, and nothing in between."""
    conn = await asyncpg.connect(url)
    for user in users:
        with IMAPClient(HOST, port, ssl=False) as client:
            client.normalise_times = False
            # Else imaplib formats each response for a log line, literals included.
            client._imap.debug = 0
            client.login(user, password)
            client.select_folder("INBOX", readonly=True)
            for uids in _batches(client.search("ALL")):
                await _copy_batch(client, conn, user, uids)
    await conn.close()


def _batches(uids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(uids), BATCH_MESSAGES):
        yield uids[start : start + BATCH_MESSAGES]


async def _copy_batch(client: Any, conn: Any, user: str, uids: Sequence[int]) -> None:
    overviews = client.fetch(
        uids, ["BODY.PEEK[HEADER]", "BODYSTRUCTURE", "INTERNALDATE", "RFC822.SIZE"]
    )
    texts = client.fetch(uids, ["BODY.PEEK[1]"])
    with_file = [uid for uid in uids if overviews[uid][b"BODYSTRUCTURE"].is_multipart]
    files = client.fetch(with_file, ["BODY.PEEK[2]"]) if with_file else {}
    async with conn.transaction():
        rows = await conn.fetch(
            _INSERT_REQUESTS,
            [f"<{uid}.{user}>" for uid in uids],
            [overviews[uid][b"INTERNALDATE"] for uid in uids],
            SHA256,
            "Anfrage Nr. 100 für März",
            "Jane Sender <sender@example.org>",
            '[{"kind": "to", "name": "", "address": "user@example.com"}]',
            "Mon, 02 Mar 2026 10:00:00 +0100",
            [texts[uid][b"BODY[1]"].decode() for uid in uids],
        )
        contents = [
            binascii.a2b_base64(files[uid][b"BODY[2]"]) if uid in files else None for uid in uids
        ]
        await conn.execute(_INSERT_ATTACHMENTS, [row["id"] for row in rows], contents, SHA256)


_INSERT_REQUEST = """
    INSERT INTO request (source_ref, message_id, content_fingerprint, subject, sender, recipients,
        sent_at, raw_date, received_at, body_text)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING id
"""
_INSERT_ATTACHMENT = """
    INSERT INTO attachment (request_id, kind, part_id, filename, content_type, size_bytes, sha256,
        verdict, status, content)
    VALUES (%s, %s, %s, %s, %s, %s, %s, 'extract', 'pending', %s)
"""


def run_imap_tools(url: str, port: int, password: str, users: Sequence[str]) -> None:
    """The loop that people write: a bulk fetch of whole mails, a transaction a mailbox."""
    with psycopg.connect(url) as conn:
        for user in users:
            with MailBoxUnencrypted(HOST, port).login(user, password) as mailbox:
                mails = list(mailbox.fetch(bulk=True, mark_seen=False))
            _store_mails(conn, mails)
            conn.commit()


def _store_mails(conn: psycopg.Connection[Any], mails: Sequence[MailMessage]) -> None:
    with conn.cursor() as cursor:
        cursor.executemany(_INSERT_REQUEST, map(_request_row, mails), returning=True)
        ids = []
        while True:
            ids.append(cursor.fetchone()[0])  # type: ignore[index]
            if not cursor.nextset():
                break
        rows = (row for key, mail in zip(ids, mails, strict=True) for row in _files(key, mail))
        cursor.executemany(_INSERT_ATTACHMENT, rows)


def _request_row(mail: MailMessage) -> tuple[object, ...]:
    message_id = mail.headers["message-id"][0]
    received_at = mail.date  # bulk fetch asks for no INTERNALDATE
    return (
        message_id,
        message_id,
        SHA256,
        mail.subject,
        mail.from_,
        Jsonb(mail.to + mail.cc),
        mail.date,
        mail.date_str,
        received_at,
        mail.text or mail.html,
    )


def _files(request_id: int, mail: MailMessage) -> list[tuple[object, ...]]:
    files: list[tuple[object, ...]] = [
        (request_id, "file", "2", one.filename, one.content_type, one.size, SHA256, one.payload)
        for one in mail.attachments
    ]
    return files or [(request_id, "body", None, None, "text/plain", 0, SHA256, None)]


def main() -> None:
    name, url, port, password, *users = sys.argv[1:]
    rivals: dict[str, Callable[[], None]] = {
        "bare": lambda: asyncio.run(run_bare(url, int(port), password, users)),
        "imap_tools": lambda: run_imap_tools(url, int(port), password, users),
    }
    started = time.perf_counter()
    rivals[name]()
    print(time.perf_counter() - started)


if __name__ == "__main__":
    main()
