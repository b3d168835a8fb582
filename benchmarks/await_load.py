"""What masses of waiting clients cost: `python -m benchmarks.await_load [--quick] [part…]`.

Prints one table of figures beside their targets. Needs Linux, Dovecot, and the extra `test`.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from benchmarks.await_api import (
    HOST,
    INTERVAL_SECONDS,
    Metrics,
    add_mailboxes,
    deliver,
    percentile,
)
from benchmarks.await_clients import UNANSWERED, allow_open_files
from benchmarks.await_crowd import (
    Clients,
    check_outcomes,
    crowd_plan,
    refused_plan,
    run_to_end,
    wait_for_crowd,
    warm_up,
)
from benchmarks.report import Figure
from benchmarks.stage import Part, Stage, announce, create_command
from tests.system.api import Api

MAILBOXES = 20
CAP = 50  # the default of AWAIT_MAX_CONCURRENT_WAITS
OVER_CAP_PER_SECOND = 300
GIVE_UP_SECONDS = 60


def measure_crowd(stage: Stage, *, quick: bool) -> list[Figure]:
    """Many who wait while nothing arrives, and then the mail for all of them at once."""
    waiters, watch_seconds = (1000, 6) if quick else (10_000, 20)
    allow_open_files(waiters)
    with _crowd_stage(stage, waiters) as (api, users):
        replica, metrics = psutil.Process(api.replica.process.pid), Metrics(api)
        warm_up(api, users)
        resident_before = replica.memory_info().rss
        announce(f"crowd: {waiters} waiters are coming")
        with Clients(crowd_plan(api, users, waiters)) as clients:
            wait_for_crowd(metrics, clients, waiters)
            resident = replica.memory_info().rss
            cpu_percent, logins = _watch_idle(replica, metrics, watch_seconds)
            announce("crowd: delivering")
            first_delivery_at = min(deliver(stage.dovecot, user) for user in users)
            report = clients.report()
    check_outcomes(report, {"200": waiters})
    figures = {
        "memory a waiter": ("KB", (resident - resident_before) / waiters / 1000, 40),
        "CPU while nothing arrives": ("% of a core", cpu_percent, 10),
        "logins": ("1/s", logins, 1.02 * MAILBOXES / INTERVAL_SECONDS),
        "first delivery to last answer": ("s", report.last_at - first_delivery_at, 3),
        "first answer to last answer": ("s", report.last_at - report.first_at, None),
    }
    part = f"{waiters:,} waiters"
    return [
        Figure(part, what, unit, [value], at_most=target)
        for what, (unit, value, target) in figures.items()
    ]


def _watch_idle(replica: psutil.Process, metrics: Metrics, seconds: float) -> tuple[float, float]:
    """Percent of a core, and logins a second; each round is one login."""
    (rounds_before,) = metrics.read("mailroom_rounds_total")
    before, began = replica.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after, elapsed = replica.cpu_times(), time.monotonic() - began
    (rounds,) = metrics.read("mailroom_rounds_total")
    used_seconds = after.user + after.system - before.user - before.system
    return 100 * used_seconds / elapsed, (rounds - rounds_before) / elapsed


def measure_over_cap(stage: Stage, *, quick: bool) -> list[Figure]:
    """More requests than there are slots, in an open loop: all are refused, at once.

    They are for a mailbox of their own, on a port where nothing but this benchmark listens.
    """
    seconds = 3 if quick else 10
    requests = OVER_CAP_PER_SECOND * seconds
    allow_open_files(requests)
    with stage.api() as api, socket.create_server((HOST, 0)) as mail_server:
        other = stage.dovecot.new_user()
        api.add_mailbox(other, mail_server.getsockname()[1])
        users, metrics = add_mailboxes(stage, api, MAILBOXES), Metrics(api)
        with Clients(crowd_plan(api, users, CAP)) as waiting:
            wait_for_crowd(metrics, waiting, CAP)
            announce(f"over the cap: {OVER_CAP_PER_SECOND} requests/s for {seconds} s")
            (rounds_before,) = metrics.read("mailroom_rounds_total")
            began = time.monotonic()
            report = run_to_end(refused_plan(api, other, requests, OVER_CAP_PER_SECOND))
            (rounds,) = metrics.read("mailroom_rounds_total")
            logins = (rounds - rounds_before) / (time.monotonic() - began)
            _check_nobody_came(mail_server)
            waiting.tell_to_leave()
            check_outcomes(waiting.report(), {UNANSWERED: CAP})
    check_outcomes(report, {"503 await-overloaded": requests})
    part = f"{OVER_CAP_PER_SECOND} requests/s over the cap"
    milliseconds = [1000 * one for one in report.seconds]
    return [
        Figure(part, "503, p50", "ms", [percentile(milliseconds, 50)]),
        Figure(part, "503, p99", "ms", [percentile(milliseconds, 99)], at_most=30),
        Figure(part, "slowest 503", "ms", [max(milliseconds)]),
        Figure(part, "logins", "1/s", [logins], at_most=1.02 * MAILBOXES / INTERVAL_SECONDS),
    ]


def measure_leaving(stage: Stage, *, quick: bool) -> list[Figure]:
    """All clients disconnect in the middle of their waits, half of them with a reset."""
    waiters = 500 if quick else 5000
    allow_open_files(waiters)
    with _crowd_stage(stage, waiters) as (api, users):
        metrics = Metrics(api)
        announce(f"leaving: {waiters} waiters are coming")
        with Clients(crowd_plan(api, users, waiters)) as clients:
            wait_for_crowd(metrics, clients, waiters)
            announce("leaving: all at once")
            clients.tell_to_leave()
            free_at = _wait_until_free(metrics)
            report = clients.report()
    check_outcomes(report, {UNANSWERED: waiters})
    part = f"{waiters:,} clients leave"
    return [
        Figure(part, "first to last client", "s", [report.last_at - report.first_at]),
        Figure(part, "first client to free slots", "s", [free_at - report.first_at], at_most=1),
    ]


def _wait_until_free(metrics: Metrics) -> float:
    give_up_at = time.monotonic() + GIVE_UP_SECONDS
    while metrics.read("mailroom_waits_in_flight") != [0]:
        if time.monotonic() > give_up_at:
            raise RuntimeError("there are slots that never become free")
    return time.monotonic()


@contextmanager
def _crowd_stage(stage: Stage, waiters: int) -> Iterator[tuple[Api, list[str]]]:
    """A replica that takes so many waiters, and the mailboxes for them."""
    settings = {
        "AWAIT_MAX_CONCURRENT_WAITS": str(waiters),
        "RATE_LIMIT_PER_MINUTE": str(60 * waiters),
    }
    with stage.api(**settings) as api:
        yield api, add_mailboxes(stage, api, MAILBOXES)


def _check_nobody_came(server: socket.socket) -> None:
    server.setblocking(False)
    try:
        server.accept()
    except BlockingIOError:
        return
    raise RuntimeError("a refused request led to an IMAP connection")


PARTS: dict[str, Part] = {
    "crowd": measure_crowd,
    "over-cap": measure_over_cap,
    "leaving": measure_leaving,
}

main = create_command("Waiting clients in masses", PARTS)


if __name__ == "__main__":
    main()
