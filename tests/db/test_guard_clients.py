"""Rule 1 in our own clients: each refuses by name, before it does anything."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime

import pytest
import trio

from service.check.domain_check import open_domain_check
from service.client import AsyncMailroomClient, MailroomClient
from service.db.notifications import listen
from service.db.pool import Database
from service.errors import IOInsideTransaction
from service.extract.llm import open_llm
from service.extract.prompt import Document
from service.extract.readers import open_readers
from service.mail.imap_line import ImapLine
from service.model import ImapConnection, ReadLimits
from service.sandbox.client import open_sandbox, send_mail
from service.settings import Settings
from service.webhook import WebhookSender
from tests.db.guard_peer import HOST, Peer
from tests.webhook.events import SECRET

Call = Callable[[], Awaitable[object]]
Prepared = AbstractAsyncContextManager[Call]
MAILBOX = "a@example.com"


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@asynccontextmanager
async def imap_line(peer: Peer, db: Database) -> AsyncIterator[Call]:
    connection = ImapConnection(HOST, peer.port("imap"), "none", "anna")
    yield ImapLine(connection, timeout_seconds=1).connect


@asynccontextmanager
async def imap_resolving(peer: Peer, db: Database) -> AsyncIterator[Call]:
    connection = ImapConnection("localhost", peer.port("imap"), "none", "anna")
    yield ImapLine(connection, timeout_seconds=1).resolve


@asynccontextmanager
async def webhook(peer: Peer, db: Database) -> AsyncIterator[Call]:
    sender = WebhookSender(peer.url, SECRET, allow_private=True)
    yield lambda: sender.send("msg_1", datetime.now(UTC), "{}")


@asynccontextmanager
async def llm(peer: Peer, db: Database) -> AsyncIterator[Call]:
    async with open_llm(Settings(llm_base_url=peer.url, llm_model="m")) as llm:
        assert llm is not None
        document = Document(b"{}", "order.pdf", None, gives_context_rows=True)
        ask = llm.ask
        yield lambda: ask(document)


@asynccontextmanager
async def readers(peer: Peer, db: Database) -> AsyncIterator[Call]:
    async with open_readers(1, ReadLimits(2**30, 5, 2**20)) as readers:
        yield lambda: readers.read(b"a,b\n")


@asynccontextmanager
async def sandbox(peer: Peer, db: Database) -> AsyncIterator[Call]:
    async def start() -> None:
        async with open_sandbox(MAILBOX, "secret"):
            pass

    yield start


@asynccontextmanager
async def sandbox_mail(peer: Peer, db: Database) -> AsyncIterator[Call]:
    yield lambda: send_mail(peer.port("smtp"), b"Subject: x\n\nx\n")


@asynccontextmanager
async def dns_check(peer: Peer, db: Database) -> AsyncIterator[Call]:
    settings = Settings(enrich_dns_servers=f"{HOST}:{peer.port('udp')}")
    async with open_domain_check(settings) as check:
        yield lambda: check.check("example.com")


@asynccontextmanager
async def api_check(peer: Peer, db: Database) -> AsyncIterator[Call]:
    async with open_domain_check(Settings(enrich_api_url=peer.url)) as check:
        yield lambda: check.check("example.com")


@asynccontextmanager
async def listening(peer: Peer, db: Database) -> AsyncIterator[Call]:
    yield lambda: listen(db, "channel", lambda: None)


@asynccontextmanager
async def connecting(peer: Peer, db: Database) -> AsyncIterator[Call]:
    yield db.connect


@asynccontextmanager
async def mailroom_client(peer: Peer, db: Database) -> AsyncIterator[Call]:
    with MailroomClient(peer.url, "token") as client:
        yield lambda: trio.to_thread.run_sync(client.list_messages, MAILBOX)


@asynccontextmanager
async def async_mailroom_client(peer: Peer, db: Database) -> AsyncIterator[Call]:
    async with AsyncMailroomClient(peer.url, "token") as client:
        yield lambda: client.list_messages(MAILBOX)


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (imap_line, f"an IMAP connection to {HOST}"),
        (imap_resolving, "resolving localhost"),
        (webhook, f"a webhook to http://{HOST}"),
        (llm, "a call to the LLM endpoint"),
        (readers, "a process that reads files"),
        (sandbox, "the mail sandbox"),
        (sandbox_mail, "SMTP"),
        (dns_check, "a DNS query"),
        (api_check, "a call to the validation API"),
        (listening, "listening to the database"),
        (connecting, "connecting to the database"),
        (mailroom_client, "socket."),  # it knows nothing of the service: the net is there for it
        (async_mailroom_client, "socket."),
    ],
)
async def test_a_client_refuses_inside_and_names_itself(
    db: Database, peer: Peer, prepare: Callable[[Peer, Database], Prepared], named: str
) -> None:
    async with prepare(peer, db) as call:
        async with db.transaction() as conn:
            with pytest.raises(IOInsideTransaction, match=named):
                await call()
            async with conn.transaction():
                with pytest.raises(IOInsideTransaction, match=named):
                    await call()
        async with db.connection():
            with pytest.raises(IOInsideTransaction, match=named):
                await call()
    assert peer.contacts == 0
