"""Crowds of clients from the benchmark's side: what they send, their process, and their arrival.

A crowd that does not come to wait in time, or whose clients end otherwise than expected, raises.
"""

import json
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from benchmarks.await_api import INTERVAL_SECONDS, Metrics, await_target
from benchmarks.await_clients import LEAVE, Plan, Report
from tests.system.api import Api

WARM_UP_WAITS = 100
RAMP_PER_SECOND = 170
# All have to be there well before the first ones have waited for 120 s.
RAMP_TIMEOUT_SECONDS = 85
SETTLE_SECONDS = 2
LOOK_SECONDS = 0.5
GIVE_UP_SECONDS = 180


class Clients:
    """The process of a plan's clients, running within the block."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.await_clients", self._plan.to_json()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def tell_to_leave(self) -> None:
        """Have all of them disconnect; `report` says when they did."""
        assert self._process.stdin is not None
        self._process.stdin.write(LEAVE)
        self._process.stdin.flush()

    def report(self) -> Report:
        """Wait until all have their answers, or have left."""
        output, _ = self._process.communicate(timeout=GIVE_UP_SECONDS)
        if self._process.returncode != 0:
            raise RuntimeError("the clients failed")
        return Report(**json.loads(output))


def crowd_plan(api: Api, users: list[str], waiters: int) -> Plan:
    """Waiters who come within a minute, spread over the mailboxes, and stay."""
    return _plan(api, [await_target(user) for user in users], waiters, RAMP_PER_SECOND, stays=True)


def refused_plan(api: Api, user: str, requests: int, per_second: float) -> Plan:
    """Requests for which there is no slot."""
    return _plan(api, [await_target(user)], requests, per_second, stays=False)


def _plan(api: Api, targets: list[str], clients: int, per_second: float, *, stays: bool) -> Plan:
    port, token = api.replica.http_port, api.create_token()
    return Plan(port, token, targets, clients, per_second, stays)


def warm_up(api: Api, users: list[str]) -> None:
    """Some waits without an answer, so that what they leave behind is not counted as waiters'."""
    targets = [await_target(user, timeout_seconds=1) for user in users]
    plan = _plan(api, targets, WARM_UP_WAITS, RAMP_PER_SECOND, stays=False)
    check_outcomes(run_to_end(plan), {"408 await-timeout": WARM_UP_WAITS})


def wait_for_crowd(metrics: Metrics, clients: Clients, waiters: int) -> None:
    """Return once all of them wait, and are past their first look."""
    give_up_at = time.monotonic() + RAMP_TIMEOUT_SECONDS
    while (found := metrics.read("mailroom_waits_in_flight")) != [waiters]:
        if time.monotonic() > give_up_at:
            clients.tell_to_leave()
            raise RuntimeError(
                f"{found[0]:g} of {waiters} wait after {RAMP_TIMEOUT_SECONDS} s, "
                f"the clients ended as {clients.report().outcomes}"
            )
        time.sleep(LOOK_SECONDS)
    time.sleep(INTERVAL_SECONDS + SETTLE_SECONDS)


def run_to_end(plan: Plan) -> Report:
    """Start the clients and wait until all have their answers."""
    with Clients(plan) as clients:
        return clients.report()


def check_outcomes(report: Report, expected: dict[str, int]) -> None:
    """RuntimeError when the clients ended in any other way."""
    if report.outcomes != expected:
        raise RuntimeError(f"the clients ended as {report.outcomes}, not {expected}")
