"""What cannot be answered is a problem document that names the reason."""

from pathlib import Path

import httpx
import pytest

from tests.scripted_imap import Hang, Message, ScriptedImap
from tests.servers import Dovecot
from tests.servers.process import free_port
from tests.system.api import Api, open_api
from tests.system.messages.box import ROUTES, Box, assert_problem, mail, searches


@pytest.mark.parametrize("email_id", ["2", "0", "-1", "4294967296", "99999999999", "abc", "1:*"])
def test_a_message_that_is_not_there_is_a_404(
    box: Box, mailbox: str, dovecot: Dovecot, email_id: str
) -> None:
    dovecot.append(mailbox, mail("first"))
    assert_problem(box.get(f"/{email_id}"), 404, "not-found")


@pytest.mark.parametrize(
    ("route", "query"),
    [
        ("", "filter[cc]=x"),
        ("", "subject=x"),
        ("", "timeout=1"),
        ("", "limit=0"),
        ("", "limit=201"),
        ("", "limit=x"),
        ("", "since=yesterday"),
        ("", "since="),
        ("", "since=0001-01-01T00:00:00%2B14:00"),
        ("", "after=1"),
        ("", "after=1.2.x"),
        ("", "filter[subject]=a&filter[subject]=b"),
        ("", "filter[subject]="),
        ("", "filter[subject]=a%0D%0Ab"),
        ("", "filter[from]=a%0Ab"),
        ("", "filter[to]=a%00b"),
        ("/1", "limit=1"),
        (":await", "limit=1"),
        (":await", "filter[body]=x"),
        (":await", "timeout=-1"),
        (":await", "timeout=abc"),
        (":await", "timeout=nan"),
        (":await", "timeout=inf"),
        (":await", "timeout=1&timeout=2"),
        (":await", "since=32.13.2026"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_a_422_that_names_it(
    client: httpx.Client, dated: Box, route: str, query: str
) -> None:
    url = f"{dated.get().url.path}{route}?{query}"
    response = client.get(url)
    assert_problem(response, 422, "invalid-request")
    assert query.partition("=")[0] in response.json()["detail"]
    assert query.partition("=")[0] in {one["parameter"] for one in response.json()["errors"]}


@pytest.mark.parametrize("mailbox_path", ["a%0D%0Ab@example.com", "a%0Ab", "a%00b"])
def test_a_mailbox_with_line_breaks_or_nul_is_refused(
    client: httpx.Client, mailbox_path: str
) -> None:
    response = client.get(f"/api/v1/email/account/{mailbox_path}/messages:await")
    assert (response.status_code, response.json()["type"][-15:]) == (422, "invalid-request")


def test_a_filter_stays_one_string_of_one_search(api: Api, client: httpx.Client) -> None:
    with ScriptedImap() as server:
        api.add_mailbox("inject@example.com", server.port)
        Box(client, "inject@example.com").get(":await", subject='x" ALL UID 1:* {5}')
    assert searches(server) == ['SUBJECT "x\\" ALL UID 1:* {5}"']


@pytest.mark.parametrize("route", ROUTES)
def test_another_method_is_a_405_that_names_the_right_one(
    client: httpx.Client, box: Box, route: str
) -> None:
    response = client.post(box.get().url.path + route)
    assert_problem(response, 405, "method-not-allowed")
    assert "GET" in response.headers["Allow"]


@pytest.mark.parametrize("route", ["", "/1"])
def test_refused_credentials_are_a_502(api: Api, client: httpx.Client, route: str) -> None:
    with ScriptedImap(script={"LOGIN": b"{tag} NO [AUTHENTICATIONFAILED] no\r\n"}) as server:
        address = f"refused{route[1:]}@example.com"
        api.add_mailbox(address, server.port)
        response = Box(client, address).get(route)
    assert_problem(response, 502, "mailbox-auth-failed")


def test_a_server_that_is_away_is_a_502(api: Api, client: httpx.Client) -> None:
    api.add_mailbox("away@example.com", free_port())
    assert_problem(Box(client, "away@example.com").get(), 502, "mailbox-unavailable")


def test_a_server_that_hangs_is_a_502_in_time(api: Api, client: httpx.Client) -> None:
    with ScriptedImap(script={"UID SEARCH": Hang()}) as server:
        api.add_mailbox("hangs@example.com", server.port)
        response = Box(client, "hangs@example.com").get()
    assert_problem(response, 502, "mailbox-unavailable")
    assert 2 <= response.elapsed.total_seconds() <= 8


def test_a_message_that_cannot_be_read_costs_itself_only(api: Api, client: httpx.Client) -> None:
    def refuse_second(args: str) -> bytes | None:
        uids = args.split(" ")[0]
        return b"{tag} NO [SERVERBUG] no\r\n" if uids in ("2", "1:2", "1:3", "2:3") else None

    mails = [Message(uid, mail(f"Mail {uid}")) for uid in (1, 2, 3)]
    with ScriptedImap(mails, {"UID FETCH": refuse_second}) as server:
        api.add_mailbox("broken@example.com", server.port)
        assert Box(client, "broken@example.com").subjects() == ["Mail 3", "Mail 1"]


def test_problem_types_stand_below_the_public_base_url(database_url: str, tmp_path: Path) -> None:
    base = "https://mail.example.org/mailroom"
    with open_api(tmp_path, database_url, PUBLIC_BASE_URL=f"{base}/") as api:
        with api.client(api.create_token()) as client:
            response = client.get(api.messages("nobody@example.com"))
        assert_problem(response, 404, "not-found", base)
