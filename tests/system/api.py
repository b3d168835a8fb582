"""A real replica and what its API needs: mailboxes, tokens, and clients. All calls block.

with open_api(tmp_path, database_url, AWAIT_POLL_INTERVAL_SECONDS="0.2") as api:
    api.add_mailbox("a@example.com", dovecot.imap_port)
    with api.client(api.create_token()) as client:
        client.get(api.messages("a@example.com", ":await"), params={"timeout": 5})
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import httpx
import psycopg
from cryptography.fernet import Fernet
from psycopg import sql

from service.db.tokens import MESSAGES_INDEX, hash_token
from tests.servers.service import Replica

CLIENT_TIMEOUT_SECONDS = 30
PASSWORD = b"secret"  # Dovecot's


class Api:
    """One database, and the replica that serves it."""

    def __init__(self, database_url: str, key: bytes, replica: Replica) -> None:
        self.database_url = database_url
        self.replica = replica
        self.origin = f"http://127.0.0.1:{replica.http_port}"
        self.key = key
        self._tokens = 0

    def add_mailbox(self, address: str, port: int, *, password: bytes = PASSWORD) -> None:
        """A mailbox on a server of this machine, read only when somebody asks for it."""
        connection = {"host": "127.0.0.1", "port": port, "tls": "none", "username": address}
        self.execute(
            "INSERT INTO email_mailbox_config (address, provider, connection, secret, enabled)"
            " VALUES (%s, 'imap', %s, %s, false)",
            address,
            json.dumps(connection),
            Fernet(self.key).encrypt(password),
        )

    def insert_mailbox(self, address: str) -> int:
        """A mailbox that nobody reads; returns its id."""
        return self.insert(
            "email_mailbox_config",
            address=address,
            provider="imap",
            connection=json.dumps(
                {"host": "127.0.0.1", "port": 1, "tls": "none", "username": address}
            ),
            enabled=False,
        )

    def create_token(
        self,
        *,
        scopes: Sequence[str] = (MESSAGES_INDEX,),
        mailboxes: Sequence[str] | None = None,
        expires_at: datetime | None = None,
        name: str = "test",
    ) -> str:
        self._tokens += 1
        token = f"mr_test{self._tokens}"
        self.execute(
            "INSERT INTO api_token (name, token_sha256, scopes, mailboxes, expires_at)"
            " VALUES (%s, %s, %s, %s, %s)",
            name,
            hash_token(token),
            list(scopes),
            None if mailboxes is None else list(mailboxes),
            expires_at,
        )
        return token

    def client(self, token: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.origin,
            headers={"Authorization": f"Bearer {token}"},
            timeout=CLIENT_TIMEOUT_SECONDS,
            verify=False,  # there is no TLS, and reading all its authorities takes time
        )

    def async_client(self, token: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.origin,
            headers={"Authorization": f"Bearer {token}"},
            timeout=CLIENT_TIMEOUT_SECONDS,
            verify=False,
            limits=httpx.Limits(max_connections=None),
        )

    @staticmethod
    def messages(mailbox: str, rest: str = "") -> str:
        """The path of a mailbox's messages; `rest` is ":await" or "/<email_id>"."""
        return f"/api/v1/email/account/{quote(mailbox, safe='')}/messages{rest}"

    def execute(self, statement: str, *values: object) -> None:
        with psycopg.connect(self.database_url) as conn:
            conn.execute(statement, values)  # type: ignore[call-overload]

    def insert(self, table: str, **values: object) -> int:
        """Insert one row; returns its id."""
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) RETURNING id").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(map(sql.Placeholder, values)),
        )
        with psycopg.connect(self.database_url) as conn:
            row = conn.execute(statement, values).fetchone()
        assert row is not None
        return int(row[0])

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample of /metrics; 0 while it is not there."""
        wanted = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        sample = f"{name}{{{wanted}}} " if labels else f"{name} "
        lines = httpx.get(f"{self.origin}/metrics", verify=False).text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(sample)), 0.0)


@contextmanager
def open_api(folder: Path, database_url: str, **settings: str) -> Iterator[Api]:
    """A replica with these environment variables, ready to serve; requests are not limited."""
    key = Fernet.generate_key()
    environment = {
        "DATABASE_URL": database_url,
        "SERVICE_SECRET_KEY": key.decode(),
        "RATE_LIMIT_PER_MINUTE": "60000",
        **settings,
    }
    with Replica(folder, environment) as replica:
        replica.wait_ready()
        yield Api(database_url, key, replica)
