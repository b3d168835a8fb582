"""How long the validation API is left alone: when it asks for that, and when it is down."""

import logging
import threading
from dataclasses import replace
from itertools import pairwise

import pytest
import trio

from service.check.api import ApiCheck, Patience
from service.check.domain_check import CountedCheck
from service.model import AddressVerdict
from tests.check.checking import HASTY, asking_api, counted, says
from tests.scripted_http import Drop, Hang, Reply, ScriptedHttp
from tests.servers import wait_until

# What threads, sockets and clocks may differ by.
SLACK_SECONDS = 0.02


def throttled(retry_after: str | None = None, status: int = 429) -> Reply:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Reply.json({"message": "Slow down."}, status, headers=headers)


async def ask_at_once(check: ApiCheck, count: int) -> list[AddressVerdict]:
    verdicts = []

    async def ask(number: int) -> None:
        verdicts.append(await check.check(f"n{number}.example.com"))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(ask, number)
    return verdicts


async def wait_for_pause(check: ApiCheck) -> None:
    with trio.fail_after(5):
        while not check.pause_seconds:  # noqa: ASYNC110 - there is no event to wait for
            await trio.sleep(0.001)


def gaps(server: ScriptedHttp) -> list[float]:
    """Seconds from each request to the next."""
    times = [request.at for request in server.requests]
    return [after - before for before, after in pairwise(times)]


# It asks to come back later


@pytest.mark.parametrize("status", [429, 503])
async def test_who_is_throttled_is_asked_again_after_the_pause(status: int) -> None:
    with ScriptedHttp(throttled("0.3", status), says()) as server:
        async with asking_api(server) as check:
            verdict = await check.check("example.com")
    assert verdict.verdict == "valid"
    (gap,) = gaps(server)
    assert 0.3 - SLACK_SECONDS <= gap < 1
    assert {request.query["domain"] for request in server.requests} == {"example.com"}


async def test_nobody_asks_during_the_pause() -> None:
    with ScriptedHttp(throttled("0.5"), says()) as server:
        async with asking_api(server) as check, trio.open_nursery() as nursery:
            nursery.start_soon(check.check, "example.com")
            await wait_for_pause(check)
            assert 0 < check.pause_seconds <= 0.5
            verdicts = await ask_at_once(check, 20)
            assert check.pause_seconds == 0
    assert {verdict.verdict for verdict in verdicts} == {"valid"}
    assert len(server.requests) == 22
    first, *later = server.requests
    assert min(request.at for request in later) - first.at >= 0.5 - SLACK_SECONDS


async def test_many_that_are_throttled_together_make_one_pause() -> None:
    """Eight refusals of one moment must not double it eight times."""
    together = threading.Barrier(8)
    refusals = [replace(throttled(), before=lambda: together.wait(5))] * 8
    patience = replace(HASTY, first_pause_seconds=0.2, max_pause_seconds=60)
    with ScriptedHttp(*refusals, says()) as server:
        async with asking_api(server, patience) as check:
            verdicts = await ask_at_once(check, 8)
    assert {verdict.verdict for verdict in verdicts} == {"valid"}
    asked_at = [request.at for request in server.requests]
    assert len(asked_at) == 16
    assert 0.2 - SLACK_SECONDS <= min(asked_at[8:]) - max(asked_at[:8]) < 5


async def test_without_a_time_the_pause_doubles() -> None:
    with ScriptedHttp(*[throttled()] * 4, says(), throttled(), says()) as server:
        async with asking_api(server) as check:
            assert (await check.check("example.com")).verdict == "valid"
            assert (await check.check("example.org")).verdict == "valid"
    *doubling, _, again = gaps(server)
    for gap, expected in zip(doubling, [0.05, 0.1, 0.2, 0.4], strict=True):
        assert expected - SLACK_SECONDS <= gap < expected + 1
    assert again >= 0.05 - SLACK_SECONDS


async def test_a_pause_of_no_time_is_one_all_the_same() -> None:
    with ScriptedHttp(throttled("0"), throttled("-5"), throttled("soon"), says()) as server:
        async with asking_api(server) as check:
            assert (await check.check("example.com")).verdict == "valid"
    assert min(gaps(server)) >= 0.05 - SLACK_SECONDS


async def test_a_long_pause_is_for_the_caller() -> None:
    with ScriptedHttp(throttled("90")) as server:
        async with asking_api(server) as check:
            with trio.fail_after(2):
                asked = await check.check("example.com")
                not_asked = await check.check("example.org")
            assert check.pause_seconds == pytest.approx(90, abs=2)
    for verdict in (asked, not_asked):
        assert (verdict.verdict, verdict.reason) == ("unknown", "api_throttled")
        assert verdict.retry_after_seconds == pytest.approx(90, abs=2)
    assert (asked.was_asked, not_asked.was_asked) == (True, False)
    assert len(server.requests) == 1


async def test_who_is_throttled_again_and_again_ends_within_the_time_of_a_claim() -> None:
    with ScriptedHttp(throttled("0.4")) as server:
        async with asking_api(server, replace(HASTY, max_wait_seconds=1)) as check:
            began = trio.current_time()
            verdict = await check.check("example.com")
            assert trio.current_time() - began < 1.5
    assert (verdict.reason, verdict.was_asked) == ("api_throttled", True)
    assert 2 <= len(server.requests) <= 3


async def test_it_is_not_asked_without_end() -> None:
    with ScriptedHttp(throttled("0.001")) as server:
        async with asking_api(server) as check:
            assert (await check.check("example.com")).reason == "api_throttled"
    assert len(server.requests) == HASTY.max_asks


async def test_throttling_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    patience = Patience(first_pause_seconds=0.01, max_pause_seconds=0.01, max_failures=2)
    with ScriptedHttp(throttled()) as server:
        async with asking_api(server, patience) as check:
            await check.check("example.com")
    assert not caplog.records


# It is down


async def test_after_failures_in_a_row_it_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with ScriptedHttp(Reply(500), Drop(), Reply(200, b"<html>"), says()) as server:
        async with asking_api(server, replace(HASTY, first_open_seconds=2)) as check:
            for expected in ("api_error", "api_unreachable", "api_garbled"):
                assert check.pause_seconds == 0
                assert (await check.check("example.com")).reason == expected
            assert 0 < check.pause_seconds <= 2
            refused = await check.check("example.com")
            assert (refused.verdict, refused.reason) == ("unknown", "api_down")
            assert not refused.was_asked
            assert refused.retry_after_seconds == pytest.approx(check.pause_seconds, abs=1)
            assert len(server.requests) == 3
            await trio.sleep(check.pause_seconds)
            assert (await check.check("example.com")).verdict == "valid"
            assert check.pause_seconds == 0
    opened, closed = (record for record in caplog.records if record.name.startswith("service"))
    assert opened.levelno == logging.WARNING
    assert "failed 3 times in a row, the last time: 200 without a verdict" in opened.getMessage()
    assert closed.levelno == logging.INFO
    assert "answers again" in closed.getMessage()


@pytest.mark.parametrize("answer", [says("invalid"), says("unknown"), Reply(404)])
async def test_failures_have_to_be_in_a_row(answer: Reply) -> None:
    bad = Reply(500)
    with ScriptedHttp(bad, bad, answer, bad, bad, answer) as server:
        async with asking_api(server) as check:
            for _ in range(6):
                await check.check("example.com")
            assert check.pause_seconds == 0
    assert len(server.requests) == 6


async def test_one_probe_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    answered = threading.Event()
    probe = says(before=lambda: answered.wait(5))
    with ScriptedHttp(*[Reply(500)] * 3, probe, says()) as server:
        async with asking_api(server) as check:
            for _ in range(3):
                await check.check("example.com")
            await trio.sleep(check.pause_seconds)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(check.check, "example.com")
                await trio.to_thread.run_sync(wait_until, lambda: len(server.requests) == 4)
                verdicts = await ask_at_once(check, 20)
                assert check.pause_seconds > 0
                assert len(server.requests) == 4, "the others are not to stampede"
                answered.set()
            assert check.pause_seconds == 0
            assert (await check.check("example.com")).verdict == "valid"
    assert {(verdict.reason, verdict.was_asked) for verdict in verdicts} == {("api_down", False)}
    assert all(verdict.retry_after_seconds for verdict in verdicts)


async def test_failures_that_come_in_late_count_as_one() -> None:
    """All were under way when it went down: they say nothing new."""
    together = threading.Barrier(16)
    with ScriptedHttp(Reply(500, before=lambda: together.wait(5))) as server:
        async with asking_api(server) as check:
            await ask_at_once(check, 16)
            assert check.pause_seconds <= 0.2
    assert len(server.requests) == 16


async def test_a_probe_that_is_cancelled_or_throttled_leaves_the_next_one() -> None:
    with ScriptedHttp(*[Reply(500)] * 3, Hang(), throttled("0.1"), says()) as server:
        async with asking_api(server) as check:
            for _ in range(3):
                await check.check("example.com")
            await trio.sleep(check.pause_seconds)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(check.check, "example.com")
                await trio.to_thread.run_sync(wait_until, lambda: len(server.requests) == 4)
                nursery.cancel_scope.cancel()
            assert check.pause_seconds == 0
            assert (await check.check("example.com")).verdict == "valid"
    assert len(server.requests) == 6


# What nobody thought of


class Broken:
    """A check with a fault."""

    pause_seconds = 0.0

    async def check(self, domain: str) -> AddressVerdict:
        raise KeyError(domain)


@pytest.mark.expects_errors
async def test_a_crash_is_an_unknown_verdict(caplog: pytest.LogCaptureFixture) -> None:
    before = counted("domain_checks_total", outcome="check_crashed")
    verdict = await CountedCheck(Broken()).check("example.com")
    assert (verdict.verdict, verdict.reason) == ("unknown", "check_crashed")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "example.com" in record.getMessage()
    assert counted("domain_checks_total", outcome="check_crashed") == before + 1
