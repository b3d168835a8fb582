"""What DNS says of a domain: mail servers, an address, none, or no such domain."""

import dns.flags
import dns.message
import pytest

from tests.check.checking import ask_dns, counted
from tests.check.scripted_dns import ScriptedDns, Zone, respond, serving

MX = {"MX": ["10 mx.example.com."]}


async def test_the_mail_servers_are_the_evidence() -> None:
    zone = {
        "example.com": {"MX": ["20 mx2.example.com.", "5 mx1.example.net.", "20 mx1.example.com."]}
    }
    with ScriptedDns(serving(zone)) as server:
        verdict = await ask_dns(server)
    assert (verdict.verdict, verdict.reason, verdict.was_asked) == ("valid", "mx", True)
    assert verdict.evidence == {
        "mx": ["5 mx1.example.net", "20 mx1.example.com", "20 mx2.example.com"]
    }
    assert server.questions == [("udp", "example.com MX")]


@pytest.mark.parametrize(
    ("records", "reason", "evidence", "asked"),
    [
        (MX, "mx", {"mx": ["10 mx.example.com"]}, ["MX"]),
        ({"A": ["192.0.2.1"]}, "address_record", {"addresses": ["192.0.2.1"]}, ["MX", "A"]),
        (
            {"AAAA": ["2001:db8::1"]},
            "address_record",
            {"addresses": ["2001:db8::1"]},
            ["MX", "A", "AAAA"],
        ),
        ({"MX": ["0 ."]}, "null_mx", {}, ["MX"]),
        ({"MX": ["0 ."], "A": ["192.0.2.1"]}, "null_mx", {}, ["MX"]),
        ({"MX": ["10 ."]}, "null_mx", {}, ["MX"]),
        ({"MX": ["0 .", "10 mx.example.com."]}, "mx", {"mx": ["10 mx.example.com"]}, ["MX"]),
        ({"TXT": ['"v=spf1 -all"']}, "no_mail_server", {}, ["MX", "A", "AAAA"]),
        ({}, "no_mail_server", {}, ["MX", "A", "AAAA"]),
    ],
)
async def test_what_a_domain_has_decides(
    records: dict[str, list[str]], reason: str, evidence: object, asked: list[str]
) -> None:
    with ScriptedDns(serving({"example.com": records})) as server:
        verdict = await ask_dns(server)
    assert (verdict.reason, verdict.evidence) == (reason, evidence)
    assert verdict.verdict == ("valid" if evidence else "invalid")
    assert [question for _, question in server.questions] == [f"example.com {one}" for one in asked]


async def test_a_domain_that_does_not_exist_is_asked_for_once() -> None:
    with ScriptedDns(serving({"example.com": MX})) as server:
        verdict = await ask_dns(server, domain="nobody.example.com")
    assert (verdict.verdict, verdict.reason) == ("invalid", "no_such_domain")
    assert server.questions == [("udp", "nobody.example.com MX")]


@pytest.mark.parametrize(
    ("zone", "reason"),
    [
        ({"example.com": {"CNAME": ["mail.example.net."]}, "mail.example.net": MX}, "mx"),
        ({"example.com": {"CNAME": ["gone.example.net."]}}, "no_such_domain"),
        ({"example.com": {"CNAME": ["www.example.net."]}, "www.example.net": {}}, "no_mail_server"),
    ],
)
async def test_an_alias_is_followed(zone: Zone, reason: str) -> None:
    with ScriptedDns(serving(zone)) as server:
        assert (await ask_dns(server)).reason == reason


async def test_of_many_mail_servers_ten_are_kept_and_they_come_over_tcp() -> None:
    """1000 records do not fit into a packet."""
    records = [f"{number} mx{number}.example.com." for number in range(1000)]
    whole = serving({"example.com": {"MX": records}})

    def answer(query: dns.message.Message, transport: str) -> bytes | None:
        if transport == "tcp":
            return whole(query, transport)
        return respond(query, flags=dns.flags.RA | dns.flags.TC).to_wire()

    with ScriptedDns(answer) as server:
        verdict = await ask_dns(server)
    assert verdict.evidence == {"mx": [f"{n} mx{n}.example.com" for n in range(10)]}
    assert server.questions == [("udp", "example.com MX"), ("tcp", "example.com MX")]


async def test_odd_octets_in_a_name_are_escaped() -> None:
    zone = {"example.com": {"MX": [r"10 m\000x\255\"<b>.example.com."]}}
    with ScriptedDns(serving(zone)) as server:
        verdict = await ask_dns(server)
    assert verdict.evidence == {"mx": [r"10 m\000x\255\"<b>.example.com"]}


@pytest.mark.parametrize(
    "domain", ["a..example.com", f"{'a' * 64}.com", "a." * 127 + "com", "\\", "ü" * 70]
)
async def test_what_cannot_be_a_name_is_not_asked_for(domain: str) -> None:
    with ScriptedDns(serving({})) as server:
        verdict = await ask_dns(server, domain=domain)
    assert (verdict.verdict, verdict.reason) == ("invalid", "no_such_domain")
    assert server.questions == []


async def test_checks_are_counted_by_their_reason() -> None:
    def read() -> tuple[float, float]:
        return (
            counted("domain_checks_total", outcome="mx"),
            counted("domain_check_seconds_count"),
        )

    before = read()
    with ScriptedDns(serving({"example.com": MX})) as server:
        await ask_dns(server)
    assert read() == (before[0] + 1, before[1] + 1)
