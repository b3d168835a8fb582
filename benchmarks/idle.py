"""What a replica costs that has nothing to do: 1,000 mailboxes, none of them due."""

import time

import psutil

from benchmarks.report import Figure
from benchmarks.stage import Stage, announce

MAILBOXES = 1000
SETTLE_SECONDS = 3


def measure(stage: Stage, *, quick: bool) -> list[Figure]:
    """The share of a core over a while under default settings, and the memory at its end."""
    watch_seconds = 15 if quick else 60
    users = [f"idle{number}@example.com" for number in range(MAILBOXES)]
    with stage.database() as url:
        stage.add_mailboxes(url, users, stage.dovecot.imap_port, idle=True)
        with stage.replicas(url, 1) as (replica,):
            announce(f"idle: watching for {watch_seconds} s")
            process = psutil.Process(replica.process.pid)
            time.sleep(SETTLE_SECONDS)
            before, started = process.cpu_times(), time.monotonic()
            time.sleep(watch_seconds)
            after, elapsed = process.cpu_times(), time.monotonic() - started
            resident_mb = process.memory_info().rss / 1e6
    used = after.user + after.system - before.user - before.system
    return [
        Figure("idle", "CPU", "% of a core", [100 * used / elapsed], at_most=1),
        Figure("idle", "resident memory", "MB", [resident_mb], at_most=120),
    ]
