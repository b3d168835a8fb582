"""Table `api_token`: bearer tokens of the HTTP API, of which only the SHA-256 is stored.

`admission.py` looks a token up for each request; here they are made, shown and revoked.
"""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.db.pool import Connection
from service.errors import MailroomError

MESSAGES_INDEX = "messages:index"
REQUESTS_INDEX = "requests:index"
REQUESTS_WRITE = "requests:write"
SCOPES = (MESSAGES_INDEX, REQUESTS_INDEX, REQUESTS_WRITE)
PREFIX = "mr_"  # so that people and secret scanners know one when they see it
_RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class Token:
    """A row as it is shown; `mailboxes` None covers all, `state` is active, expired or revoked."""

    id: int
    name: str
    scopes: tuple[str, ...]
    mailboxes: tuple[str, ...] | None
    state: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


_SHOWN = """
    id, name, scopes, mailboxes, CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
    WHEN expires_at <= now() THEN 'expired' ELSE 'active' END AS state,
    created_at, expires_at, revoked_at, last_used_at
"""

_INSERT = """
    INSERT INTO api_token (name, token_sha256, scopes, mailboxes, expires_at)
    VALUES ($1, $2, $3, $4, $5)
"""

_REVOKE = f"""
    UPDATE api_token SET revoked_at = coalesce(revoked_at, now())
    WHERE name = $1 OR id::text = $1
    RETURNING {_SHOWN}
"""


async def create_token(
    conn: Connection,
    *,
    name: str,
    scopes: Collection[str],
    mailboxes: Collection[str] | None,
    expires_at: datetime | None,
) -> str:
    """Store a new token; returns it in clear, for the only time."""
    token = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    digest = hash_token(token)
    kept_mailboxes = None if mailboxes is None else list(mailboxes)
    await conn.execute(_INSERT, name, digest, list(scopes), kept_mailboxes, expires_at)
    return token


async def list_tokens(conn: Connection) -> list[Token]:
    """All tokens, also those that no longer work, in the order of their creation."""
    return [_token(row) for row in await conn.fetch(f"SELECT {_SHOWN} FROM api_token ORDER BY id")]


async def revoke_tokens(conn: Connection, name_or_id: str) -> list[Token]:
    """Revoke every token of this name, or that of this id. MailroomError if there is none."""
    rows = await conn.fetch(_REVOKE, name_or_id)
    if not rows:
        raise MailroomError(f"there is no token {name_or_id}", hint="see: token list")
    return [_token(row) for row in rows]


def hash_token(token: str) -> bytes:
    """What is stored of a token: it is random, so a plain hash keeps it secret."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _token(row: Any) -> Token:
    return Token(
        id=row["id"],
        name=row["name"],
        scopes=tuple(row["scopes"]),
        mailboxes=None if row["mailboxes"] is None else tuple(row["mailboxes"]),
        state=row["state"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
    )
