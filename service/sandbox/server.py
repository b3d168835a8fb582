"""The sandbox's two servers in one asyncio loop: aiosmtpd takes mails in, pymap gives them out.

Listens on 127.0.0.1 only. Every mail, whoever it is for, ends up in the INBOX of the one user,
byte for byte apart from line ends, which become CRLF. Mails live in memory and die with the
process. A port that cannot be had raises `MailroomError`.
"""

import asyncio
import json
import os
import re
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Awaitable
from contextlib import suppress
from datetime import UTC, datetime

from aiosmtpd.smtp import SMTP, Envelope, Session
from proxyprotocol.reader import ProxyProtocolReader
from pymap.backend.dict import Config, Login
from pymap.backend.dict.filter import FilterSet
from pymap.imap import IMAPServer
from pymap.parsing.message import AppendMessage
from pymap.user import Passwords, UserMetadata
from pysasl.hashing import BuiltinHash
from pysasl.prep import Preparation, noprep

from service.errors import MailroomError
from service.sandbox.inbox import Inboxes

HOST = "127.0.0.1"
MAX_MAIL_BYTES = 50 * 1024 * 1024
_STANDARD_INPUT = 0


async def serve(user: str, password: str, *, imap_port: int = 0, smtp_port: int = 0) -> None:
    """Serve until standard input closes, SIGTERM or SIGINT; 0 takes any free port.

    Prints `{"imap_port": …, "smtp_port": …}` on standard output once both accept connections.
    """
    stop = _stop_requested()
    login = await _create_login(user, password)
    imap = await _bind(_start_imap(login, imap_port), imap_port)
    smtp = await _bind(_start_smtp(login, smtp_port), smtp_port)
    ports = {"imap_port": _port(imap), "smtp_port": _port(smtp)}
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    await stop.wait()
    # Not waited for: open connections would keep it up, and they are cancelled with the loop.
    imap.close()
    smtp.close()


class _ImapConfig(Config):
    @property
    def greeting(self) -> bytes:
        # The original asks the resolver for the machine's name, at every connection.
        return b"mailroom sandbox"

    @property
    def password_prep(self) -> Preparation:
        # The original raises, for some passwords, an error that shows them.
        return noprep


class _SmtpServer(SMTP):
    # RFC 5321 allows 1000; a mail catcher should also take what others send against it.
    line_length_limit = 1024 * 1024


class _Delivery:
    """The handler of aiosmtpd: what it raises becomes a 500 to the sender and a log line."""

    def __init__(self, login: Login) -> None:
        self._inbox_owner = login.demo_user_identity

    async def handle_DATA(  # noqa: N802, the name is aiosmtpd's
        self,
        server: SMTP,  # noqa: ARG002
        session: Session,  # noqa: ARG002
        envelope: Envelope,
    ) -> str:
        """Store the mail once, however many recipients it has."""
        raw = re.sub(rb"(?<!\r)\n", b"\r\n", envelope.original_content or b"")
        message = AppendMessage(raw, datetime.now(UTC))
        async with self._inbox_owner.new_session() as session_of_owner:
            await session_of_owner.append_messages("INBOX", [message])
        return "250 OK"


async def _create_login(user: str, password: str) -> Login:
    config = _ImapConfig(
        Namespace(passlib_cfg=None, proxy_protocol=None),
        host=HOST,
        port=0,
        tls_enabled=False,
        demo_data=False,
        demo_user=user,
        demo_password="",
        # The hash never leaves this process; a slow one would only cost every login 0.25 s.
        hash_context=BuiltinHash(rounds=1),
    )
    config.apply_context()
    config.set_cache[user] = (Inboxes(), FilterSet())
    login = Login(config)
    password_hash = await Passwords(config).hash_password(password)
    await login.demo_user_identity.set(UserMetadata(config, user, password=password_hash))
    return login


async def _start_imap(login: Login, port: int) -> asyncio.Server:
    connection = ProxyProtocolReader(login.config.proxy_protocol)
    serve_client = connection.get_callback(IMAPServer(login, login.config))
    return await asyncio.start_server(serve_client, HOST, port)


async def _start_smtp(login: Login, port: int) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    delivery = _Delivery(login)

    def create_connection() -> SMTP:
        return _SmtpServer(
            delivery,
            data_size_limit=MAX_MAIL_BYTES,
            enable_SMTPUTF8=True,
            hostname="localhost",
            ident="mailroom sandbox",
            loop=loop,
        )

    return await loop.create_server(create_connection, HOST, port)


async def _bind(starting: Awaitable[asyncio.Server], port: int) -> asyncio.Server:
    try:
        return await starting
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise MailroomError(f"cannot listen on {HOST}:{port}: {reason}") from error


def _port(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


def _stop_requested() -> asyncio.Event:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def wait_for_end_of_input() -> None:
        with suppress(OSError):
            while os.read(_STANDARD_INPUT, 1024):
                pass
        # The loop may be closed by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)

    # A thread and not the loop, which cannot watch a file or /dev/null; a parent that was killed
    # closes the pipe, too.
    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    return stop
