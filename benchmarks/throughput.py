"""Mails per second of the service, of a bare loop, and of the loop that people write today."""

import subprocess
import sys

from benchmarks.mails import mailbox_mails
from benchmarks.report import Figure
from benchmarks.stage import Amount, Stage, announce, check_stored

PDF_EVERY = 10
PDF_BYTES = 200 * 1024


def measure(stage: Stage, *, quick: bool) -> list[Figure]:
    """The contenders in alternation, each into an empty database; medians."""
    mailboxes, mails_each, rounds = (5, 100, 1) if quick else (20, 250, 3)
    amount = Amount(mailboxes, mails_each, files=mailboxes * mails_each // PDF_EVERY)
    users = [stage.dovecot.new_user() for _ in range(mailboxes)]
    announce(f"throughput: writing {mailboxes} x {mails_each} mails")
    for user in users:
        stage.fill_mailbox(
            user, mailbox_mails(user, mails_each, pdf_every=PDF_EVERY, pdf_bytes=PDF_BYTES)
        )
    rates: dict[str, list[float]] = {"service": [], "bare": [], "imap_tools": []}
    for number in range(rounds):
        for name, runs in rates.items():
            announce(f"throughput: {name}, round {number + 1} of {rounds}")
            runs.append(amount.mails / _seconds(stage, name, users, amount))
    return _figures(rates)


def _seconds(stage: Stage, name: str, users: list[str], amount: Amount) -> float:
    port = stage.dovecot.imap_port
    with stage.database() as url:
        if name != "service":
            seconds = _rival_seconds(name, url, port, stage.dovecot.password, users)
            check_stored(url, amount)
            return seconds
        stage.add_mailboxes(url, users, port, idle=False)
        with stage.replicas(url, 1, POLL_INTERVAL_SECONDS="1"):
            return stage.ingest(url, amount).seconds


def _rival_seconds(name: str, url: str, port: int, password: str, users: list[str]) -> float:
    command = [sys.executable, "-m", "benchmarks.rivals", name, url, str(port), password, *users]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return float(done.stdout)


def _figures(rates: dict[str, list[float]]) -> list[Figure]:
    def ratio(rival: str) -> list[float]:
        return [ours / theirs for ours, theirs in zip(rates["service"], rates[rival], strict=True)]

    return [
        Figure("throughput", "service, one replica", "mails/s", rates["service"]),
        Figure("throughput", "bare loop: IMAPClient, asyncpg", "mails/s", rates["bare"]),
        Figure("throughput", "imap_tools, psycopg", "mails/s", rates["imap_tools"]),
        Figure("throughput", "service / bare loop", "", ratio("bare"), at_least=0.6),
        Figure("throughput", "service / imap_tools", "", ratio("imap_tools"), at_least=1.0),
    ]
