"""Outbound calls by libraries of all kinds, each to a `Peer`: what rule 1 refuses.

By name; the async ones run on Trio, the blocking ones in a thread or wherever they are put.
"""

import asyncio
import ftplib
import http.client
import imaplib
import os
import poplib
import shutil
import smtplib
import socket
import ssl
import subprocess
import urllib.request
import xmlrpc.client
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

import anyio
import dns.asyncquery
import dns.asyncresolver
import dns.message
import dns.query
import dns.resolver
import httpcore
import httpx
import imap_tools
import requests
import trio
import urllib3
from imapclient import IMAPClient

from tests.db.guard_peer import HOST, Peer

TIMEOUT_SECONDS = 5
TOUCH = shutil.which("touch") or "/bin/touch"
PLAIN = ssl.create_default_context()


def resolver_at(peer: Peer, kind: type[dns.resolver.BaseResolver]) -> dns.resolver.BaseResolver:
    resolver = kind(configure=False)
    resolver.nameservers, resolver.port = [HOST], peer.port("udp")
    return resolver


# On Trio


async def httpx_async(peer: Peer) -> None:
    async with httpx.AsyncClient(verify=PLAIN) as client:
        await client.get(peer.url)


async def httpx_async_unix(peer: Peer) -> None:
    transport = httpx.AsyncHTTPTransport(verify=PLAIN, uds=peer.stream_path)
    async with httpx.AsyncClient(transport=transport) as client:
        await client.get(peer.url)


async def httpcore_async(peer: Peer) -> None:
    async with httpcore.AsyncConnectionPool(ssl_context=PLAIN) as pool:
        await pool.request("GET", peer.url)


async def anyio_connect_tcp(peer: Peer) -> None:
    async with await anyio.connect_tcp(HOST, peer.port()):
        pass


async def anyio_connect_unix(peer: Peer) -> None:
    async with await anyio.connect_unix(peer.stream_path):
        pass


async def anyio_udp(peer: Peer) -> None:
    async with await anyio.create_udp_socket(family=socket.AF_INET) as udp:
        await udp.sendto(b"?", HOST, peer.port("udp"))


async def anyio_run_process(peer: Peer) -> None:
    await anyio.run_process([TOUCH, peer.witness()])


async def anyio_getaddrinfo(peer: Peer) -> None:
    await anyio.getaddrinfo("localhost", peer.port())


async def trio_tcp_stream(peer: Peer) -> None:
    async with await trio.open_tcp_stream(HOST, peer.port()):
        pass


async def trio_tls_stream(peer: Peer) -> None:
    stream = await trio.open_ssl_over_tcp_stream(HOST, peer.port(), ssl_context=PLAIN)
    await trio.aclose_forcefully(stream)


async def trio_unix_socket(peer: Peer) -> None:
    async with await trio.open_unix_socket(peer.stream_path):
        pass


async def trio_socket_connect(peer: Peer) -> None:
    with trio.socket.socket() as sock:
        await sock.connect((HOST, peer.port()))


async def trio_udp(peer: Peer) -> None:
    with trio.socket.socket(type=socket.SOCK_DGRAM) as sock:
        await sock.sendto(b"?", (HOST, peer.port("udp")))


async def trio_getaddrinfo(peer: Peer) -> None:
    await trio.socket.getaddrinfo("localhost", peer.port())


async def trio_run_process(peer: Peer) -> None:
    await trio.run_process([TOUCH, peer.witness()])


async def trio_open_process(peer: Peer) -> None:
    process = await trio.lowlevel.open_process([TOUCH, peer.witness()])
    await process.wait()


async def dns_async_resolver(peer: Peer) -> None:
    resolver = resolver_at(peer, dns.asyncresolver.Resolver)
    await resolver.resolve("example.com", lifetime=0.05)


async def dns_async_query(peer: Peer) -> None:
    question = dns.message.make_query("example.com", "MX")
    await dns.asyncquery.udp(question, HOST, 0.05, peer.port("udp"))


ASYNC_CALLS: dict[str, Callable[[Peer], Awaitable[None]]] = {
    "httpx.AsyncClient": httpx_async,
    "httpx.AsyncClient to a Unix socket": httpx_async_unix,
    "httpcore.AsyncConnectionPool": httpcore_async,
    "anyio.connect_tcp": anyio_connect_tcp,
    "anyio.connect_unix": anyio_connect_unix,
    "anyio UDP": anyio_udp,
    "anyio.run_process": anyio_run_process,
    "anyio.getaddrinfo": anyio_getaddrinfo,
    "trio.open_tcp_stream": trio_tcp_stream,
    "trio.open_ssl_over_tcp_stream": trio_tls_stream,
    "trio.open_unix_socket": trio_unix_socket,
    "trio.socket connect": trio_socket_connect,
    "trio.socket sendto": trio_udp,
    "trio.socket.getaddrinfo": trio_getaddrinfo,
    "trio.run_process": trio_run_process,
    "trio.lowlevel.open_process": trio_open_process,
    "dns.asyncresolver": dns_async_resolver,
    "dns.asyncquery.udp": dns_async_query,
}


# Blocking


def httpx_sync(peer: Peer) -> None:
    with httpx.Client(verify=PLAIN) as client:
        client.get(peer.url)


def requests_get(peer: Peer) -> None:
    requests.get(peer.url, timeout=TIMEOUT_SECONDS).close()


def urllib3_request(peer: Peer) -> None:
    with urllib3.PoolManager(retries=False) as pool:
        pool.request("GET", peer.url)


def urllib_open(peer: Peer) -> None:
    with urllib.request.urlopen(peer.url, timeout=TIMEOUT_SECONDS):
        pass


def http_client(peer: Peer) -> None:
    with closing(http.client.HTTPConnection(HOST, peer.port(), TIMEOUT_SECONDS)) as connection:
        connection.request("GET", "/")


def xml_rpc(peer: Peer) -> None:
    with xmlrpc.client.ServerProxy(peer.url) as server:
        server.ping()


def smtp(peer: Peer) -> None:
    smtplib.SMTP(HOST, peer.port("smtp"), "localhost", TIMEOUT_SECONDS).close()


def imap(peer: Peer) -> None:
    imaplib.IMAP4(HOST, peer.port("imap"), TIMEOUT_SECONDS).shutdown()


def imapclient(peer: Peer) -> None:
    IMAPClient(HOST, peer.port("imap"), ssl=False, timeout=TIMEOUT_SECONDS).shutdown()


def imap_tools_mailbox(peer: Peer) -> None:
    imap_tools.MailBoxUnencrypted(HOST, peer.port("imap"), TIMEOUT_SECONDS).client.shutdown()


def pop3(peer: Peer) -> None:
    poplib.POP3(HOST, peer.port("pop3"), TIMEOUT_SECONDS).close()


def ftp(peer: Peer) -> None:
    with ftplib.FTP(timeout=TIMEOUT_SECONDS) as client:
        client.connect(HOST, peer.port("ftp"))


def dns_resolver(peer: Peer) -> None:
    resolver_at(peer, dns.resolver.Resolver).resolve("example.com", lifetime=0.05)


def dns_query(peer: Peer) -> None:
    dns.query.udp(dns.message.make_query("example.com", "MX"), HOST, 0.05, peer.port("udp"))


def create_connection(peer: Peer) -> None:
    socket.create_connection((HOST, peer.port()), TIMEOUT_SECONDS).close()


def connect_ex(peer: Peer) -> None:
    with socket.socket() as sock:
        sock.connect_ex((HOST, peer.port()))


def connected_udp(peer: Peer) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.connect((HOST, peer.port("udp")))
        sock.send(b"?")


def sendmsg(peer: Peer) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.sendmsg([b"?"], [], 0, (HOST, peer.port("udp")))


def gethostbyname(peer: Peer) -> None:
    socket.gethostbyname("localhost")


def getfqdn(peer: Peer) -> None:
    socket.getfqdn(HOST)


def getnameinfo(peer: Peer) -> None:
    socket.getnameinfo((HOST, peer.port()), socket.NI_NUMERICHOST)


def subprocess_run(peer: Peer) -> None:
    subprocess.run([TOUCH, peer.witness()], check=True)


def shell(peer: Peer) -> None:
    subprocess.check_output(f"{TOUCH} {peer.witness()}", shell=True)


def os_system(peer: Peer) -> None:
    os.system(f"{TOUCH} {peer.witness()}")


def posix_spawn(peer: Peer) -> None:
    os.waitpid(os.posix_spawn(TOUCH, [TOUCH, peer.witness()], os.environ), 0)


def asyncio_connection(peer: Peer) -> None:
    async def talk() -> None:
        _, writer = await asyncio.open_connection(HOST, peer.port())
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    asyncio.run(talk())


def another_trio(peer: Peer) -> None:
    trio.run(trio_tcp_stream, peer)


BLOCKING_CALLS: dict[str, Callable[[Peer], None]] = {
    "httpx.Client": httpx_sync,
    "requests": requests_get,
    "urllib3": urllib3_request,
    "urllib.request": urllib_open,
    "http.client": http_client,
    "xmlrpc.client": xml_rpc,
    "smtplib": smtp,
    "imaplib": imap,
    "IMAPClient": imapclient,
    "imap_tools": imap_tools_mailbox,
    "poplib": pop3,
    "ftplib": ftp,
    "dns.resolver": dns_resolver,
    "dns.query.udp": dns_query,
    "socket.create_connection": create_connection,
    "socket.connect_ex": connect_ex,
    "socket connected UDP": connected_udp,
    "socket.sendmsg": sendmsg,
    "socket.gethostbyname": gethostbyname,
    "socket.getfqdn": getfqdn,
    "socket.getnameinfo": getnameinfo,
    "subprocess.run": subprocess_run,
    "subprocess with a shell": shell,
    "os.system": os_system,
    "os.posix_spawn": posix_spawn,
    "asyncio.open_connection": asyncio_connection,
    "a trio.run of its own": another_trio,
}
LEAVE_NO_TRACE = {  # with the peer, that is
    "anyio.getaddrinfo",
    "trio.socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.getfqdn",
    "socket.getnameinfo",
}
OWN_EVENT_LOOP = {"asyncio.open_connection", "a trio.run of its own"}
# So that no line of the caller is on the stack when it starts.
STARTED_IN_A_TASK_OF_THE_LIBRARY = {
    "anyio.connect_tcp",
    "anyio.run_process",
    "trio.run_process",
    "trio.lowlevel.open_process",
}
