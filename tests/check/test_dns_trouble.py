"""DNS servers that are away, slow, broken or hostile: unknown, in time, and nothing left open."""

import logging
from itertools import pairwise
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
import trio
import trio.testing

from service.check.dns import NO_SERVERS_PAUSE_SECONDS, DnsCheck
from service.errors import IOInsideTransaction
from service.outbound import holding_connection
from service.settings import Settings
from tests.check.checking import ask_dns, asking_dns, open_sockets
from tests.check.scripted_dns import (
    Script,
    ScriptedDns,
    Zone,
    failing,
    question_of,
    respond,
    serving,
    silent,
)
from tests.servers import wait_until

GOOD = serving({"example.com": {"MX": ["10 mx.example.com."]}})
FORGED = serving({"example.com": {"MX": ["1 eve.example.net."]}})


def wrong_id(query: dns.message.Message, transport: str) -> bytes:
    octets = FORGED(query, transport)
    assert octets is not None
    return bytes([octets[0] ^ 255]) + octets[1:]


def other_question(query: dns.message.Message, _transport: str) -> bytes:
    other = dns.message.make_query("example.org.", "MX", id=query.id)
    forged = dns.rrset.from_text("example.org.", 300, "IN", "MX", "1 eve.example.net.")
    return respond(other, forged).to_wire()


def echo(query: dns.message.Message, _transport: str) -> bytes:
    return query.to_wire()


def garbage(_query: dns.message.Message, _transport: str) -> bytes:
    return bytes(range(256))


def cut(query: dns.message.Message, transport: str) -> bytes:
    return (GOOD(query, transport) or b"")[:-5]


def truncated(then: Script) -> Script:
    """Over UDP it says that the answer does not fit; over TCP the other script goes on."""

    def answer(query: dns.message.Message, transport: str) -> bytes | None:
        if transport == "tcp":
            return then(query, transport)
        return respond(query, flags=dns.flags.RA | dns.flags.TC).to_wire()

    return answer


def first(count: int, script: Script, then: Script = GOOD) -> Script:
    """The first answers are by the one script, all later ones by the other."""
    calls = iter(range(10**9))
    return lambda *query: (script if next(calls) < count else then)(*query)


def aliases(*targets: str) -> Script:
    """An answer of aliases alone, each of the next name."""

    def answer(query: dns.message.Message, _transport: str) -> bytes:
        names = pairwise([question_of(query)[0] + ".", *targets])
        rrsets = [dns.rrset.from_text(one, 300, "IN", "CNAME", other) for one, other in names]
        return respond(query, *rrsets).to_wire(max_size=65_535)

    return answer


@pytest.mark.parametrize(
    "script",
    [
        silent,
        wrong_id,
        other_question,
        echo,
        garbage,
        cut,
        truncated(silent),
    ],
)
async def test_without_a_sound_answer_the_domain_is_unknown_in_time(script: Script) -> None:
    before = open_sockets()
    with ScriptedDns(script) as server:
        began = trio.current_time()
        verdict = await ask_dns(server, timeout_seconds=0.4)
        assert trio.current_time() - began < 1.5
    assert (verdict.verdict, verdict.reason) == ("unknown", "dns_timeout")
    assert verdict.detail == "no DNS server answered within 0.4 s"
    assert verdict.was_asked
    assert len(server.questions) > 1, "a packet may be lost: it has to ask again"
    assert open_sockets() <= before


@pytest.mark.parametrize("script", [silent, wrong_id, garbage])
async def test_a_packet_may_be_lost_or_forged(script: Script) -> None:
    with ScriptedDns(first(1, script)) as server:
        verdict = await ask_dns(server, timeout_seconds=1.5)
    assert verdict.evidence == {"mx": ["10 mx.example.com"]}
    assert len(server.questions) == 2


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (failing(dns.rcode.SERVFAIL), "answered SERVFAIL"),
        (failing(dns.rcode.REFUSED), "answered REFUSED"),
        (failing(dns.rcode.NOTIMP), "answered NOTIMP"),
        (failing(dns.rcode.FORMERR), "answered FORMERR"),
        (failing(dns.rcode.YXDOMAIN), "too long"),
        (truncated(garbage), "is unknown"),
        (truncated(cut), "malformed"),
        (truncated(wrong_id), "does not respond to the question"),
        (aliases("example.com."), "chain is too long"),
        (aliases("a.example.com.", "example.com."), "chain is too long"),
        (aliases(*(f"n{number}.example.com." for number in range(30))), "chain is too long"),
    ],
)
async def test_a_server_that_fails_leaves_the_domain_unknown(script: Script, told: str) -> None:
    before = open_sockets()
    with ScriptedDns(script) as server:
        verdict = await ask_dns(server)
    assert (verdict.verdict, verdict.reason) == ("unknown", "dns_failure")
    assert told in verdict.detail
    assert verdict.detail.isprintable()
    assert open_sockets() <= before


@pytest.mark.parametrize("zone", [{"example.com": {}}, {}])  # no records; no such name
async def test_a_server_that_knows_its_own_domains_only_says_nothing_of_others(
    zone: Zone,
) -> None:
    """It refers to others: taken for an answer, that would make every domain invalid."""
    with ScriptedDns(serving(zone, flags=0)) as server:
        verdict = await ask_dns(server)
    assert (verdict.verdict, verdict.reason) == ("unknown", "dns_failure")
    assert "ENRICH_DNS_SERVERS" in verdict.detail


@pytest.mark.parametrize(
    "script", [silent, failing(dns.rcode.SERVFAIL), failing(dns.rcode.REFUSED), truncated(garbage)]
)
async def test_the_next_server_is_asked(script: Script) -> None:
    with ScriptedDns(script) as bad, ScriptedDns(GOOD) as good:
        verdict = await ask_dns(bad, good, timeout_seconds=1.5)
    assert verdict.reason == "mx"
    assert good.questions == [("udp", "example.com MX")]


async def test_the_time_is_for_all_questions_together() -> None:
    def only_mx(query: dns.message.Message, transport: str) -> bytes | None:
        return (
            serving({"example.com": {}})(query, transport)
            if question_of(query)[1] == "MX"
            else None
        )

    with ScriptedDns(only_mx) as server:
        began = trio.current_time()
        verdict = await ask_dns(server, timeout_seconds=0.4)
        assert trio.current_time() - began < 1
    assert verdict.reason == "dns_timeout"


@pytest.mark.parametrize("script", [silent, truncated(silent)])
async def test_a_cancelled_check_leaves_no_socket(script: Script) -> None:
    before = open_sockets()
    with ScriptedDns(script) as server:
        listening = open_sockets()
        async with asking_dns(server) as check, trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(check.check, f"n{number}.example.com")
            kind = "udp" if script is silent else "tcp"
            await trio.to_thread.run_sync(
                wait_until, lambda: sum(one == kind for one, _ in server.questions) == 5
            )
            assert open_sockets() > listening
            nursery.cancel_scope.cancel()
        # The server's own ends of TCP connections close with ours.
        await trio.to_thread.run_sync(wait_until, lambda: open_sockets() <= listening)
    assert open_sockets() <= before


async def test_inside_a_transaction_it_is_refused() -> None:
    with ScriptedDns(GOOD) as server:
        async with asking_dns(server) as check:
            with holding_connection("rows.py:17"), pytest.raises(IOInsideTransaction) as caught:
                await check.check("example.com")
    assert "a DNS query" in str(caught.value)
    assert server.questions == []


async def test_many_at_once_do_not_disturb_each_other() -> None:
    with ScriptedDns(first(20, silent)) as server:
        async with asking_dns(server, timeout_seconds=3) as check, trio.open_nursery() as nursery:
            verdicts = []

            async def ask() -> None:
                verdicts.append(await check.check("example.com"))

            for _ in range(40):
                nursery.start_soon(ask)
    assert [verdict.reason for verdict in verdicts] == ["mx"] * 40


# The servers of the system


@pytest.mark.parametrize(
    "content", [None, "", "search example.com\n", "nameserver nonsense\n", b"nameserver \xff\n"]
)
async def test_without_a_server_it_is_told_once_and_nothing_is_asked(
    content: str | bytes | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    path = tmp_path / "resolv.conf"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    check = DnsCheck(Settings(), str(path))
    assert check.pause_seconds == 0
    for _ in range(2):
        for _ in range(2):
            verdict = await check.check("example.com")
            assert (verdict.verdict, verdict.reason) == ("unknown", "dns_failure")
            assert not verdict.was_asked
            assert verdict.retry_after_seconds == check.pause_seconds == NO_SERVERS_PAUSE_SECONDS
            assert "ENRICH_DNS_SERVERS" in verdict.detail
        await trio.sleep(NO_SERVERS_PAUSE_SECONDS)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "ENRICH_DNS_SERVERS" in record.getMessage()


async def test_a_server_that_appears_later_is_asked(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "resolv.conf"
    check = DnsCheck(Settings(enrich_timeout_seconds=0.5), str(path))
    assert not (await check.check("example.com")).was_asked
    path.write_text("search example.com\nnameserver 127.0.0.1\noptions timeout:9\n")
    await trio.sleep(NO_SERVERS_PAUSE_SECONDS)
    assert check.pause_seconds == 0
    assert (await check.check("example.com")).was_asked
