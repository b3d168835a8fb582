"""`python -m service enrich run` as a process, from a file to the verdicts."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import pytest

from tests.check.scripted_dns import ScriptedDns, question_of, respond, serving
from tests.scripted_http import Hang, Reply, ScriptedHttp
from tests.servers import PgBouncer, wait_until
from tests.system.test_cli import ENVIRONMENT, failure, run, select, succeed

ZONE = {"example.com": {"MX": ["10 mx.example.com."]}, "nomail.example.com": {"MX": ["0 ."]}}
LEADS = """\
company,email
One,anna@example.com
Two,INFO@example.com
Three,bob@nomail.example.com
Four,carl@gone.example.com
Five,dora@broken.example.com
Six,no address
Seven,"ev""il@example.com, x"
Eight,frida@mailinator.com
"""
COME_BACK_LATER = Reply(503, headers={"Retry-After": "3600"})
VERDICTS = {
    "anna@example.com": (True, "mx"),
    "INFO@example.com": (True, "mx"),
    "bob@nomail.example.com": (False, "null_mx"),
    "carl@gone.example.com": (False, "no_such_domain"),
    "dora@broken.example.com": (None, "dns_failure"),
    "no address": (False, "syntax"),
    'ev"il@example.com, x': (False, "syntax"),
    "frida@mailinator.com": (False, "disposable_domain"),
}


def answer(query: dns.message.Message, transport: str) -> bytes | None:
    if question_of(query)[0] == "broken.example.com":
        return respond(query, rcode=dns.rcode.SERVFAIL).to_wire()
    return serving(ZONE)(query, transport)


def verdicts(url: str) -> Mapping[object, tuple[object, object]]:
    rows = select(
        url, "SELECT email, email_verified, email_check->>'reason' AS r FROM job_advertisement"
    )
    return {row["email"]: (row["email_verified"], row["r"]) for row in rows}


@pytest.fixture
def leads(database_url: str, tmp_path: Path) -> str:
    """The URL of a database with the addresses of LEADS."""
    path = tmp_path / "leads.csv"
    path.write_text(LEADS)
    succeed("enrich", "import", str(path), DATABASE_URL=database_url)
    return database_url


def test_from_a_file_to_its_verdicts(leads: str) -> None:
    with ScriptedDns(answer) as server, PgBouncer(leads) as bouncer:
        environment = {"DATABASE_URL": bouncer.url, "ENRICH_DNS_SERVERS": server.address}
        said = succeed("enrich", "run", "--once", **environment)
        assert said == "2 valid, 5 invalid, 1 unknown\n"
        assert verdicts(leads) == VERDICTS
        asked = [name for _, name in server.questions if name.startswith("example.com")]
        assert asked == ["example.com MX"]
        again = json.loads(succeed("enrich", "run", "--once", "--json", **environment))
        assert again == {"valid": 0, "invalid": 0, "unknown": 0, "failed": 0, "due": 0}
    status = json.loads(succeed("enrich", "status", "--json", DATABASE_URL=leads))
    assert (status["valid"], status["invalid"], status["waiting"]) == (2, 5, 1)


def test_what_the_api_asks_to_come_back_for_is_unknown_until_then(leads: str) -> None:
    with ScriptedHttp(COME_BACK_LATER) as api:
        result = run("enrich", "run", "--once", DATABASE_URL=leads, ENRICH_API_URL=api.url)
    assert result.stdout == "0 valid, 3 invalid, 5 unknown\n"
    assert result.returncode == 0, "they are tried again later"
    rows = select(leads, "SELECT email_check FROM job_advertisement WHERE email_verified IS NULL")
    checks: list[Any] = [row["email_check"] for row in rows]
    assert {check["reason"] for check in checks} == {"api_throttled"}
    assert all(check["retry_at"] for check in checks)


def test_what_is_due_while_asking_is_of_no_use_is_a_failure(leads: str) -> None:
    with ScriptedHttp(COME_BACK_LATER) as api:
        result = run(
            "enrich",
            "run",
            "--once",
            DATABASE_URL=leads,
            ENRICH_API_URL=api.url,
            ENRICH_BATCH_SIZE="1",
            ENRICH_PARTITIONS="1",
        )
    assert failure(result).startswith("7 rows are still due: asking is of no use now")
    assert len(api.requests) == 1


def test_ctrl_c_gives_back_what_is_under_way(leads: str) -> None:
    with ScriptedHttp(Hang()) as api:
        environment = {**ENVIRONMENT, "DATABASE_URL": leads, "ENRICH_API_URL": api.url}
        with subprocess.Popen(
            [sys.executable, "-m", "service", "enrich", "run"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            wait_until(lambda: api.requests, seconds=20)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == "0 valid, 0 invalid, 0 unknown\n"
    assert err == "stopped; 8 rows are due\n"
    claimed = select(leads, "SELECT count(email_check_claimed_at) AS n FROM job_advertisement")
    assert claimed == [{"n": 0}]


def test_a_resolver_that_the_system_does_not_name_can_be_named() -> None:
    with ScriptedDns(answer) as server:
        result = run("enrich", "run", "--once", ENRICH_DNS_SERVERS=server.address.replace(":", "#"))
    assert failure(result).startswith("ENRICH_DNS_SERVERS: must be IP or IP:PORT")
