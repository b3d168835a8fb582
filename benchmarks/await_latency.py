"""How soon a waiting client has its mail: `python -m benchmarks.await_latency [--quick] [part…]`.

Prints one table of figures and ratios beside their targets. Needs Dovecot, and the extra `test`.
"""

import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.await_api import (
    INTERVAL_SECONDS,
    Client,
    Metrics,
    add_mailboxes,
    bare_round,
    deliver,
    percentile,
)
from benchmarks.report import Figure
from benchmarks.stage import Part, Stage, announce, create_command
from tests.system.api import Api

WARM_UP_LOOKS = 20
# Long enough for a first look on a busy machine.
FIRST_LOOK_SECONDS = 1
BARE_ROUND_PAUSE_SECONDS = 0.25


def measure_first_look(stage: Stage, *, quick: bool) -> list[Figure]:
    """A mail that is there already: the service beside the bare round, the order alternating."""
    looks, runs = (40, 1) if quick else (200, 3)
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    with stage.api() as api:
        token = api.create_token()
        _look(stage, api, token, WARM_UP_LOOKS)
        for number in range(runs):
            announce(f"first look: run {number + 1} of {runs}")
            run = _look(stage, api, token, looks)
            ours.append([service for service, _ in run])
            bare.append([rival for _, rival in run])
    return _first_look_figures(ours, bare)


def _look(stage: Stage, api: Api, token: str, looks: int) -> list[tuple[float, float]]:
    """Seconds of the service and of the bare round, in mailboxes that nobody waited for before:
    the service would hold back a second round until the interval is over."""
    users = add_mailboxes(stage, api, looks)
    for user in users:
        deliver(stage.dovecot, user)
        bare_round(stage.dovecot, user)  # so that nobody pays for Dovecot's own first look
    pairs = []
    with Client(api, token) as client:
        for number, user in enumerate(users):
            if number % 2:
                service, rival = _ask(client, user), bare_round(stage.dovecot, user)
            else:
                rival, service = bare_round(stage.dovecot, user), _ask(client, user)
            pairs.append((service, rival))
    return pairs


def _ask(client: Client, user: str) -> float:
    began = time.monotonic()
    client.ask(user)
    return client.receive(user) - began


def _first_look_figures(ours: list[list[float]], bare: list[list[float]]) -> list[Figure]:
    ratios = [
        statistics.median(service) / statistics.median(rival)
        for service, rival in zip(ours, bare, strict=True)
    ]
    return [
        *(
            Figure("first look", f"{who}, p{percent}", "ms", _percentiles_ms(runs, percent))
            for who, runs in (("service", ours), ("bare IMAPClient", bare))
            for percent in (50, 95)
        ),
        Figure("first look", "service / bare, medians", "", ratios, at_most=1.5),
    ]


def _percentiles_ms(runs: list[list[float]], percent: int) -> list[float]:
    return [1000 * percentile(run, percent) for run in runs]


def measure_waiting(stage: Stage, *, quick: bool) -> list[Figure]:
    """From the acceptance of a mail until its waiter has it, many of them in parallel."""
    lanes, turns = (10, 3) if quick else (25, 8)
    with stage.api() as api, ThreadPoolExecutor(lanes) as threads:
        token = api.create_token()
        users = add_mailboxes(stage, api, lanes * turns)
        announce(f"waiting: {lanes} lanes of {turns} waits")
        running = [
            threads.submit(_wait_in_turn, stage, api, token, users[lane::lanes], lane / lanes)
            for lane in range(lanes)
        ]
        bare = [_bare_round_meanwhile(stage)]
        while not all(lane.done() for lane in running):
            bare.append(_bare_round_meanwhile(stage))
        delays = [delay for lane in running for delay in lane.result()]
        _check_looked_twice(api, len(delays))
    return _waiting_figures(delays, statistics.median(bare))


def _wait_in_turn(
    stage: Stage, api: Api, token: str, users: Sequence[str], phase: float
) -> list[float]:
    """One wait after the other, each in a mailbox of its own; seconds from delivery to answer."""
    time.sleep(phase * INTERVAL_SECONDS)
    source = random.Random(users[0])
    delays = []
    with Client(api, token) as client:
        for user in users:
            client.ask(user)
            time.sleep(FIRST_LOOK_SECONDS + source.uniform(0, 2 * INTERVAL_SECONDS))
            accepted_at = deliver(stage.dovecot, user)
            delays.append(client.receive(user) - accepted_at)
    return delays


def _bare_round_meanwhile(stage: Stage) -> float:
    """Under the load of the waits; its mailbox is a new one, looked at before."""
    user = stage.dovecot.new_user()
    deliver(stage.dovecot, user)
    bare_round(stage.dovecot, user)
    time.sleep(BARE_ROUND_PAUSE_SECONDS)
    return bare_round(stage.dovecot, user)


def _check_looked_twice(api: Api, waits: int) -> None:
    """A wait that needed one round only had its mail delivered before its first look."""
    (rounds,) = Metrics(api).read("mailroom_rounds_total")
    if rounds < 2 * waits:
        raise RuntimeError(f"{rounds:g} rounds for {waits} waits: mails came before first looks")


def _waiting_figures(delays: Sequence[float], bare_seconds: float) -> list[Figure]:
    bound = round(INTERVAL_SECONDS + 2 * bare_seconds, 3)
    return [
        Figure("waiting", "bare IMAPClient meanwhile, p50", "ms", [1000 * bare_seconds]),
        Figure("waiting", "delivery to answer, p50", "s", [percentile(delays, 50)]),
        Figure("waiting", "delivery to answer, p99", "s", [percentile(delays, 99)], at_most=bound),
    ]


PARTS: dict[str, Part] = {"first-look": measure_first_look, "waiting": measure_waiting}

main = create_command("Latency of waits", PARTS)


if __name__ == "__main__":
    main()
