"""What replicas add when the mail server takes 50 ms per command."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.mails import mailbox_mails
from benchmarks.report import Figure
from benchmarks.stage import Amount, Run, Stage, announce

DELAY_SECONDS = 0.05
REPLICAS = (1, 2, 4)
# Far below the default: 40 polls at once would be bound by the cores of a small machine, which
# Dovecot and PostgreSQL need as well, and not by the mail server's delay.
POLL_CONCURRENCY = "2"
SPEED_UPS = {2: 1.8, 4: 3.2}


def measure(stage: Stage, *, quick: bool) -> list[Figure]:
    """Seconds until all mailboxes are read, by number of replicas; medians, and speed-ups."""
    mailboxes, mails_each, rounds = (32, 2, 1) if quick else (96, 5, 3)
    amount = Amount(mailboxes, mails_each, files=0)
    users = [stage.dovecot.new_user() for _ in range(mailboxes)]
    announce(f"latency: writing {mailboxes} x {mails_each} mails")
    for user in users:
        mails = mailbox_mails(user, mails_each)
        stage.fill_mailbox(user, mails)
    runs: dict[int, list[Run]] = {count: [] for count in REPLICAS}
    with _delay_proxy(stage.dovecot.imap_port) as port:
        for number in range(rounds):
            for count in REPLICAS:
                announce(f"latency: {count} replicas, round {number + 1} of {rounds}")
                runs[count].append(_run(stage, users, amount, port, count))
    return _figures(runs)


def _run(stage: Stage, users: list[str], amount: Amount, port: int, count: int) -> Run:
    with stage.database() as url:
        stage.add_mailboxes(url, users, port, idle=False)
        with stage.replicas(
            url, count, POLL_INTERVAL_SECONDS="1", POLL_CONCURRENCY=POLL_CONCURRENCY
        ):
            return stage.ingest(url, amount)


@contextmanager
def _delay_proxy(target_port: int) -> Iterator[int]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.delay_proxy",
        str(target_port),
        str(DELAY_SECONDS),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def _figures(runs: dict[int, list[Run]]) -> list[Figure]:
    seconds = {count: [run.seconds for run in runs[count]] for count in REPLICAS}
    figures = [
        Figure("latency", f"replicas: {count}, {POLL_CONCURRENCY} polls each", "s", seconds[count])
        for count in REPLICAS
    ]
    for count, target in SPEED_UPS.items():
        speed_ups = [one / many for one, many in zip(seconds[1], seconds[count], strict=True)]
        figures.append(Figure("latency", f"speed-up with {count}", "", speed_ups, at_least=target))
    busy = [run.cores_busy_percent for run in runs[max(REPLICAS)]]
    figures.append(Figure("latency", f"cores busy with {max(REPLICAS)} replicas", "%", busy))
    return figures
