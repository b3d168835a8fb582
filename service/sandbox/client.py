"""The sandbox as the rest of the service sees it: a child process with two ports, and `send_mail`.

The child ends with the block, and by itself if this process dies. What goes wrong is a
`MailroomError` that carries the child's own words.
"""

import json
import logging
import os
import re
import smtplib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import IO, cast

import trio

from service.errors import MailroomError
from service.outbound import refuse_inside_transaction

HOST = "127.0.0.1"
_START_TIMEOUT_SECONDS = 30
_STOP_TIMEOUT_SECONDS = 5
_SMTP_TIMEOUT_SECONDS = 30
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Where the running sandbox listens, on 127.0.0.1 and without TLS."""

    imap_port: int
    smtp_port: int


@asynccontextmanager
async def open_sandbox(user: str, password: str) -> AsyncIterator[Sandbox]:
    """A running sandbox whose one mailbox belongs to `user`."""
    refuse_inside_transaction("the mail sandbox")
    # A file, not a pipe: nobody has to read it for the child to go on.
    with TemporaryFile() as complaints:
        process = await _start(user, password, complaints)
        try:
            sandbox = await _read_ports(process, complaints)
            try:
                yield sandbox
            finally:
                _log_complaints(complaints)
        finally:
            with trio.move_on_after(_STOP_TIMEOUT_SECONDS, shield=True):
                await _ask_to_stop(process)
            with trio.move_on_after(_STOP_TIMEOUT_SECONDS, shield=True):
                await _kill(process)


async def send_mail(
    port: int,
    mail: bytes | EmailMessage,
    *,
    sender: str = "sender@example.com",
    recipients: Sequence[str] = ("demo@example.com",),
) -> None:
    """Hand a mail to the sandbox's SMTP port; bare line feeds become CRLF."""
    refuse_inside_transaction("SMTP")
    raw = mail if isinstance(mail, bytes) else mail.as_bytes(policy=SMTP)
    await trio.to_thread.run_sync(_send, port, raw, sender, list(recipients))


def _send(port: int, raw: bytes, sender: str, recipients: list[str]) -> None:
    try:
        # With a name given, smtplib does not ask the resolver for one.
        with smtplib.SMTP(HOST, port, "localhost", timeout=_SMTP_TIMEOUT_SECONDS) as smtp:
            smtp.sendmail(sender, recipients, _BARE_LINE_FEED.sub(b"\r\n", raw))
    except OSError as error:
        raise MailroomError(f"the mail sandbox did not take the mail: {error}") from error


async def _start(user: str, password: str, complaints: IO[bytes]) -> trio.Process:
    return await trio.lowlevel.open_process(
        [sys.executable, "-m", "service.sandbox", "--user", user],
        stdin=PIPE,
        stdout=PIPE,
        stderr=complaints,
        env={**os.environ, "SANDBOX_PASSWORD": password},
        # Ctrl-C is for this process, which stops the child when nobody needs it any more.
        start_new_session=True,
    )


async def _read_ports(process: trio.Process, complaints: IO[bytes]) -> Sandbox:
    stdout = cast("trio.abc.ReceiveStream", process.stdout)
    line = b""
    with trio.move_on_after(_START_TIMEOUT_SECONDS) as deadline:
        async for chunk in stdout:
            line += chunk
            if line.endswith(b"\n"):
                return Sandbox(**json.loads(line))
    said = _read(complaints) or "it ended without a word"
    reason = "it took too long" if deadline.cancelled_caught else said.splitlines()[-1]
    raise MailroomError(f"the mail sandbox did not start: {reason}")


async def _ask_to_stop(process: trio.Process) -> None:
    await cast("trio.abc.SendStream", process.stdin).aclose()
    await process.wait()


async def _kill(process: trio.Process) -> None:
    """Does nothing to a process that has ended."""
    process.kill()
    await process.wait()
    await cast("trio.abc.ReceiveStream", process.stdout).aclose()


def _log_complaints(complaints: IO[bytes]) -> None:
    said = _read(complaints)
    if said:
        _log.warning("the mail sandbox said: %s", said)


def _read(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    return complaints.read().decode(errors="replace").strip()
