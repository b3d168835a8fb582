"""The jsonb columns of `email_mailbox_config`: connections and cursors of each provider. Pure.

TypeError or ValueError for a document that makes no sense.
"""

import json
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from service.model import (
    Connection,
    Cursor,
    GmailConnection,
    GmailCursor,
    GraphConnection,
    GraphCursor,
    ImapConnection,
    ImapCursor,
    Provider,
)

_CONNECTIONS: dict[str, type[Connection]] = {
    "imap": ImapConnection,
    "gmail": GmailConnection,
    "graph": GraphConnection,
}
_CURSORS: dict[str, TypeAdapter[Any]] = {
    "imap": TypeAdapter(ImapCursor),
    "gmail": TypeAdapter(GmailCursor),
    "graph": TypeAdapter(GraphCursor),
}
_OAUTH_FIELDS = ("issuer", "grant")


def provider_of(connection: Connection) -> Provider:
    """The provider whose connection it is."""
    if isinstance(connection, GmailConnection):
        return "gmail"
    return "graph" if isinstance(connection, GraphConnection) else "imap"


def dump_connection(connection: Connection) -> str:
    """JSON; with a password there is nothing of OAuth in it."""
    document = asdict(connection)
    if connection.issuer is None:
        document = {key: value for key, value in document.items() if key not in _OAUTH_FIELDS}
    return json.dumps(document)


def parse_connection(provider: str, document: dict[str, Any]) -> Connection:
    """The connection of a row."""
    return _CONNECTIONS[provider](**document)


def dump_cursor(cursor: Cursor | None) -> str | None:
    """JSON, or SQL's null."""
    return None if cursor is None else json.dumps(asdict(cursor))


def parse_cursor(provider: str, text: str | None) -> Cursor | None:
    """The cursor of a row."""
    return None if text is None else _CURSORS[provider].validate_json(text)
