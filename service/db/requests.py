"""Table `request` with its rows in `attachment`: storing each message exactly once.

The SELECT on (source, source_ref) saves work; the UNIQUE constraint decides. A batch goes in with
a few statements under one SAVEPOINT; when that violates the constraint another replica has won
one of them, so what is stored is looked up again and the rest goes in.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from service.db.driver_errors import UniqueViolationError
from service.db.new_attachments import insert_attachments
from service.db.outbox import announce_completed
from service.db.pool import Connection
from service.model import NewRequest, Verdict

# What is known of these ids already.
_FIND = """
    SELECT source_ref, content_fingerprint FROM request
    WHERE source = 'email' AND source_ref = ANY($1::text[])
"""

# Invariant: all or nothing; UNIQUE (source, source_ref) refuses what another replica has stored.
# The ids follow the order of the mails, the rows go in by source_ref: in one order everywhere, so
# that two replicas with the same mails wait for each other and never deadlock.
_INSERT = """
    WITH numbered AS MATERIALIZED (
        SELECT nextval(pg_get_serial_sequence('request', 'id')) AS id, u.*
        FROM unnest($2::text[], $3::text[], $4::boolean[], $5::text[], $6::text[], $7::text[],
                    $8::text[], $9::timestamptz[], $10::text[], $11::timestamptz[], $12::text[])
            AS u(source_ref, message_id, reused, fingerprint, subject, sender, recipients, sent_at,
                 raw_date, received_at, body_text))
    INSERT INTO request (id, source, source_ref, mailbox_id, message_id, message_id_reused,
        content_fingerprint, subject, sender, recipients, sent_at, raw_date, received_at, body_text)
    OVERRIDING SYSTEM VALUE
    SELECT id, 'email', source_ref, $1, message_id, reused, fingerprint, subject, sender,
        recipients::jsonb, sent_at, raw_date, received_at, body_text
    FROM numbered ORDER BY source_ref
    RETURNING id, source_ref
"""

_ATTEMPTS = 10


def suffixed_ref(source_ref: str, fingerprint: str) -> str:
    """The ref of a different mail that reuses the id of a stored one."""
    return f"{source_ref}#{fingerprint[:16]}"


def is_stored(source_ref: str, fingerprint: str, known: Mapping[str, str]) -> bool:
    """Whether this very mail is among the `known` fingerprints by ref."""
    refs = (source_ref, suffixed_ref(source_ref, fingerprint))
    return any(known.get(ref) == fingerprint for ref in refs)


def decide_source_ref(source_ref: str, fingerprint: str, known: Mapping[str, str]) -> str:
    """The ref for a mail that is not stored yet. ValueError when other mails hold both forms."""
    for ref in (source_ref, suffixed_ref(source_ref, fingerprint)):
        if ref not in known:
            return ref
    raise ValueError(f"two other mails hold the id {source_ref[:80]} and its suffixed form")


async def find_fingerprints(
    conn: Connection, identities: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """Fingerprints by ref, of what is stored under these (source_ref, fingerprint) identities."""
    refs = [ref for pair in identities for ref in (pair[0], suffixed_ref(*pair))]
    return dict(await conn.fetch(_FIND, refs))


async def store_requests(
    conn: Connection,
    mailbox_id: int | None,
    requests: Sequence[NewRequest],
    *,
    announces: bool = False,
) -> list[str]:
    """Store what is not stored yet: "stored" or "duplicate" for each. Inside a transaction.

    `announces`: the webhook gets to know of a request with nothing to extract, as it is complete
    at once. Raises one of REJECTED_ERRORS when the database will not have one of them.
    """
    known: dict[str, str] = {}
    for _ in range(_ATTEMPTS):
        decided = decide_requests(requests, known)
        try:
            async with conn.transaction():
                fresh = [one for one in decided if one is not None]
                complete = await _insert(conn, mailbox_id, fresh)
                if announces and complete:
                    await announce_completed(conn, complete)
        except UniqueViolationError:  # another replica won one of them: now its row is visible
            known = await find_fingerprints(
                conn, [(one.source_ref, one.content_fingerprint) for one in requests]
            )
        else:
            return ["duplicate" if one is None else "stored" for one in decided]
    raise ValueError("other replicas store the same mails all the time")


def decide_requests(
    requests: Iterable[NewRequest], known: Mapping[str, str]
) -> list[NewRequest | None]:
    """Each request under the ref to store it with, None for a duplicate, also one in the list."""
    taken = dict(known)
    decided: list[NewRequest | None] = []
    for request in requests:
        identity = (request.source_ref, request.content_fingerprint)
        if is_stored(*identity, taken):
            decided.append(None)
            continue
        ref = decide_source_ref(*identity, taken)
        taken[ref] = request.content_fingerprint
        reused = ref != request.source_ref
        decided.append(replace(request, source_ref=ref, message_id_reused=reused))
    return decided


async def _insert(
    conn: Connection, mailbox_id: int | None, requests: Sequence[NewRequest]
) -> list[int]:
    """The ids of those that have nothing to extract."""
    if not requests:
        return []
    rows = await conn.fetch(
        _INSERT,
        mailbox_id,
        [request.source_ref for request in requests],
        [request.message_id for request in requests],
        [request.message_id_reused for request in requests],
        [request.content_fingerprint for request in requests],
        [request.subject for request in requests],
        [request.sender for request in requests],
        [json.dumps([dict(entry) for entry in request.recipients]) for request in requests],
        [request.sent_at for request in requests],
        [request.raw_date for request in requests],
        [request.received_at for request in requests],
        [request.body_text for request in requests],
    )
    ids = {row["source_ref"]: row["id"] for row in rows}
    await insert_attachments(
        conn,
        [
            (ids[request.source_ref], attachment)
            for request in requests
            for attachment in request.attachments
        ],
    )
    return [
        ids[request.source_ref]
        for request in requests
        if all(one.verdict is not Verdict.EXTRACT for one in request.attachments)
    ]
