"""Rule 1 on connections from before the transaction: to speak on over them is refused too."""

import ftplib
import http.client
import imaplib
import poplib
import smtplib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import httpx
import pytest
import requests
import trio
import urllib3
from imapclient import IMAPClient

from service.db.pool import Database
from service.errors import IOInsideTransaction
from tests.db.guard_calls import PLAIN, TIMEOUT_SECONDS
from tests.db.guard_peer import HOST, Peer

Speak = Callable[[], object]


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


def over_http_client(peer: Peer, stack: ExitStack) -> Speak:
    connection = http.client.HTTPConnection(HOST, peer.port(), TIMEOUT_SECONDS)
    stack.enter_context(closing(connection))

    def speak() -> None:
        connection.request("GET", "/")
        connection.getresponse().read()

    return speak


def over_urllib3(peer: Peer, stack: ExitStack) -> Speak:
    pool = stack.enter_context(urllib3.PoolManager(retries=False))
    return lambda: pool.request("GET", peer.url)


def over_requests(peer: Peer, stack: ExitStack) -> Speak:
    one = stack.enter_context(requests.Session())
    return lambda: one.get(peer.url, timeout=TIMEOUT_SECONDS)


def over_smtplib(peer: Peer, stack: ExitStack) -> Speak:
    smtp = smtplib.SMTP(HOST, peer.port("smtp"), "localhost", TIMEOUT_SECONDS)
    stack.callback(smtp.close)
    return smtp.noop


def over_imaplib(peer: Peer, stack: ExitStack) -> Speak:
    imap = imaplib.IMAP4(HOST, peer.port("imap"), TIMEOUT_SECONDS)
    stack.callback(imap.shutdown)
    return imap.noop


def over_imapclient(peer: Peer, stack: ExitStack) -> Speak:
    client = IMAPClient(HOST, peer.port("imap"), ssl=False, timeout=TIMEOUT_SECONDS)
    stack.callback(client.shutdown)
    return client.noop


def over_poplib(peer: Peer, stack: ExitStack) -> Speak:
    pop = poplib.POP3(HOST, peer.port("pop3"), TIMEOUT_SECONDS)
    stack.callback(pop.close)
    return pop.noop


def over_ftplib(peer: Peer, stack: ExitStack) -> Speak:
    ftp = stack.enter_context(ftplib.FTP(timeout=TIMEOUT_SECONDS))
    ftp.connect(HOST, peer.port("ftp"))
    return lambda: ftp.sendcmd("NOOP")


KEPT_ALIVE: list[Callable[[Peer, ExitStack], Speak]] = [
    over_http_client,
    over_urllib3,
    over_requests,
    over_smtplib,
    over_imaplib,
    over_imapclient,
    over_poplib,
    over_ftplib,
]


@pytest.mark.parametrize("over", KEPT_ALIVE)
async def test_speaking_on_is_refused_too(
    db: Database, peer: Peer, over: Callable[[Peer, ExitStack], Speak]
) -> None:
    with ExitStack() as stack:
        speak = await trio.to_thread.run_sync(over, peer, stack)
        await trio.to_thread.run_sync(speak)
        contacts = peer.contacts
        async with db.transaction():
            with pytest.raises(IOInsideTransaction):
                await trio.to_thread.run_sync(speak)
        assert peer.contacts == contacts


async def test_httpx_speaks_on_unseen_so_our_clients_refuse_by_themselves(
    db: Database, peer: Peer
) -> None:
    async with httpx.AsyncClient(verify=PLAIN) as client:
        await client.get(peer.url)
        async with db.transaction():
            answer = await client.get(peer.url)
    assert answer.status_code == 200
