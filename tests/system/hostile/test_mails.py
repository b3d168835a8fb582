"""Hostile mails and mail servers behind the API: each costs itself, and the time that was given."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest
import trio

from tests.bounds import MEGABYTE, at_most
from tests.scripted_imap import Close, Drip, Message, Reply, ScriptedImap
from tests.servers import wait_until
from tests.system.hostile.mailbox import (
    IMAP_TIMEOUT_SECONDS,
    IN_FLIGHT,
    OpenMailbox,
    check_wire,
    encoded_word,
    mail,
    mails,
    subjects_of,
)
from tests.system.hostile.raw_http import check_response


@contextmanager
def growing_at_most(process_id: int, megabytes: int) -> Iterator[None]:
    """Fails if the process, looked at all the time, grows by more."""
    process = psutil.Process(process_id)
    sizes = [process.memory_info().rss]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            sizes.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    assert max(sizes) - sizes[0] < megabytes * MEGABYTE


def naming_all(server: ScriptedImap) -> Reply:
    """SEARCH names all messages, whatever it is asked: what a server may make of any criteria."""
    return lambda _args: server.default_reply("UID SEARCH", "ALL")


def refusing(server: ScriptedImap, uid: int) -> Callable[[str], bytes | None]:
    """FETCH answers NO whenever this message is among those asked for."""

    def reply(args: str) -> bytes | None:
        answer = server.default_reply("UID FETCH", args)
        return b"{tag} NO [SERVERBUG] no\r\n" if b"(UID %d " % uid in answer else None

    return reply


def test_what_no_json_can_hold_is_left_out(open_mailbox: OpenMailbox) -> None:
    lone = encoded_word("A").replace("QQ==", base64.b64encode(b"\xed\xa0\x80\0").decode())
    raw = (
        b"Subject: a\0b \xed\xa0\x80 \xff " + lone.encode() + b" end\r\n"
        b"From: \0\xed\xa0\x80 <x\0y\xff@example.com>\r\n"
        b"Message-ID: <\xed\xa0\x80\0@example.com>\r\n"
        b'Content-Type: text/html; charset="utf-7\xff"\r\n\r\n'
        b"<a href='http://example.com/\0\xed\xa0\x80'>\0\xed\xa0\x80\xff&#xD800;&#0;</a>"
    )
    structure = '("text" "html" ("charset" "utf-7") NIL NIL "8bit" 60 1)'
    mailbox = open_mailbox([Message(1, raw, structure=structure)])
    for response in (mailbox.get(), mailbox.get("/1"), mailbox.get(":await", timeout=0)):
        (message,) = check_response(response).json()["data"]["collection"]
        text = json.dumps(message, ensure_ascii=False)
        assert "\\u0000" not in text
        text.encode()  # UnicodeEncodeError for a lone surrogate
        assert message["subject"].startswith("ab")
        assert message["subject"].endswith("end")


def test_a_header_of_a_megabyte_is_searched_as_far_as_it_is_read(
    open_mailbox: OpenMailbox,
) -> None:
    header = "Subject: first\r\n" + "".join(
        f"X-{number}: {'x' * 900}\r\n" for number in range(1100)
    )
    long_subject = "Subject: begin " + "x" * MEGABYTE + "\r\n"
    mailbox = open_mailbox(
        [
            Message(1, f"{header}\r\ntext".encode()),
            Message(2, f"{long_subject}\r\ntext".encode()),
            mail(3, "first"),
        ]
    )
    found = check_response(mailbox.get(**{"filter[subject]": "first"})).json()
    assert [one["email_id"] for one in found["data"]["collection"]] == ["3", "1"]
    found = check_response(mailbox.get(":await", **{"filter[subject]": "begin", "timeout": 0}))
    assert found.status_code == 200
    assert len(found.content) < MEGABYTE


@pytest.mark.parametrize(
    "structure",
    [
        "NIL",
        "()",
        "((((",
        "))))",
        "(" * 5000 + ")" * 5000,
        '("text" "plain")',
        '("text" "plain" NIL NIL NIL "7bit" -1 -1)',
        '("text" "plain" NIL NIL NIL "7bit" 99999999999999999999999 1)',
        "(1 2 3 4 5 6 7)",
        '"text"',
        "{5}\r\nhello",
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_a_structure_that_makes_no_sense_costs_its_mail_only(
    open_mailbox: OpenMailbox, structure: str
) -> None:
    mailbox = open_mailbox([mail(1), mail(2, structure=structure), mail(3)])
    assert [one for one in mailbox.subjects() if one != "2"] == ["3", "1"]
    assert subjects_of(mailbox.get(":await", **{"filter[subject]": "1", "timeout": 0})) == ["1"]
    assert check_response(mailbox.get("/2")).status_code in (200, 404)


def test_a_message_that_cannot_be_read_is_named(open_mailbox: OpenMailbox) -> None:
    mailbox = open_mailbox([mail(1), mail(2, structure="NIL"), mail(3)])
    response = mailbox.get(":await", **{"filter[subject]": "nothing", "timeout": 0.5})
    assert response.status_code == 408
    assert "message 2 cannot be read" in response.json()["last_error"]
    assert response.json()["messages_seen"] == 2
    assert mailbox.get("/2").status_code == 404


def test_a_fetch_that_is_refused_for_one_mail_costs_that_mail_only(
    open_mailbox: OpenMailbox,
) -> None:
    mailbox = open_mailbox(mails(1, 2, 3))
    mailbox.server.script["UID FETCH"] = refusing(mailbox.server, 2)
    assert mailbox.subjects() == ["3", "1"]
    assert subjects_of(mailbox.get(":await", timeout=0)) == ["3"]
    response = mailbox.get(":await", **{"filter[subject]": "2", "timeout": 0.5})
    assert response.status_code == 408
    assert response.json()["last_error"].startswith("message 2 cannot be read: ")
    assert response.json()["last_error"].endswith("[SERVERBUG] no")
    assert response.json()["rejected_by"] == {"subject": 2}


def test_texts_that_are_refused_cost_their_mail_only(open_mailbox: OpenMailbox) -> None:
    mailbox = open_mailbox(mails(1, 2, 3))
    refuse = refusing(mailbox.server, 2)
    mailbox.server.script["UID FETCH"] = lambda args: (
        None if "BODYSTRUCTURE" in args else refuse(args)
    )
    assert mailbox.subjects() == ["3", "1"]
    response = mailbox.get(":await", **{"filter[subject]": "2", "timeout": 0.5})
    assert response.status_code == 408
    assert "message 2 cannot be read" in response.json()["last_error"]
    mailbox.server.messages.append(mail(4, "2 again"))
    assert mailbox.get(":await", **{"filter[subject]": "2", "timeout": 5}).status_code == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"* SEARCH 1 2 3 4\r\n{tag} OK done\r\n",  # 2 and 4 are deleted meanwhile
        b"* SEARCH 3 1\r\n* SEARCH 1 99\r\n{tag} OK done\r\n",
        b"* SEARCH 0 -5 1 3 4294967296 99999999999999999999 18446744073709551617\r\n{tag} OK\r\n",
    ],
    ids=["deleted", "twice", "impossible"],
)
def test_what_search_names_wrongly_is_passed_over(open_mailbox: OpenMailbox, answer: bytes) -> None:
    mailbox = open_mailbox(mails(1, 3), {"UID SEARCH": answer})
    assert mailbox.subjects() == ["3", "1"]
    assert subjects_of(mailbox.get(":await", timeout=0)) == ["3"]
    assert mailbox.get("/2").status_code == 404
    response = mailbox.get(":await", **{"filter[subject]": "2", "timeout": 0.5})
    assert (response.status_code, response.json()["messages_seen"]) == (408, 2)


@pytest.mark.parametrize(
    ("answer", "index_status"),
    [
        (b"{tag} OK done\r\n", 200),
        (b"* SEARCH\r\n{tag} OK done\r\n", 200),
        (b"* SEARCH one two\r\n{tag} OK done\r\n", 502),
        (b"* SEARCH (1)\r\n{tag} OK done\r\n", 502),
        (b"{tag} BAD what\r\n", 502),
        (b"{tag} NO [UNAVAILABLE] later\r\n", 502),
        (b"garbage\r\n{tag} OK done\r\n", 502),
        (Close(b"* BYE \xff\0<script>\r\n"), 502),
        (Close(b"* SEARCH 1"), 502),
    ],
    ids=["missing", "empty", "words", "list", "bad", "later", "garbage", "bye", "half"],
)
def test_a_search_without_a_usable_answer_finds_nothing(
    open_mailbox: OpenMailbox, answer: Reply, index_status: int
) -> None:
    mailbox = open_mailbox(mails(1), {"UID SEARCH": answer})
    assert check_response(mailbox.get()).status_code == index_status
    response = check_response(mailbox.get(":await", timeout=0))
    assert response.status_code == 408
    assert (response.json()["last_error"] is None) == (index_status == 200)


@pytest.mark.parametrize("left_out", ["UIDNEXT", "UIDVALIDITY", "EXISTS", "UID", "*"])
def test_a_folder_opens_also_without_its_numbers(open_mailbox: OpenMailbox, left_out: str) -> None:
    mailbox = open_mailbox(mails(1, 2))
    lines = mailbox.server.default_reply("EXAMINE", "INBOX").splitlines(keepends=True)
    kept = [line for line in lines if left_out.encode() not in line]
    mailbox.server.script["EXAMINE"] = b"".join(kept)
    assert mailbox.subjects() == ["2", "1"]
    response = mailbox.get(":await", **{"filter[subject]": "3", "timeout": 0.5})
    assert response.status_code == 408
    assert response.json()["messages_seen"] == 2
    after = response.json()["cursor"]
    mailbox.server.messages.append(mail(3))
    assert subjects_of(mailbox.get(":await", after=after, timeout=5)) == ["3"]


def test_a_list_of_monstrous_mails_fits_into_memory(open_mailbox: OpenMailbox) -> None:
    body = ("\r\n" + ("x" * 70 + "\r\n") * (MEGABYTE // 72)).encode()
    raw = b"Subject: big\r\nFrom: a@example.com\r\n"
    structure = f'("text" "plain" NIL NIL NIL "7bit" {len(body)} {len(body) // 72})'
    mailbox = open_mailbox([Message(uid, raw + body, structure=structure) for uid in range(1, 301)])
    with growing_at_most(mailbox.api.replica.process.pid, 250):
        found = mailbox.subjects(limit=200)
    assert 1 <= len(found) <= 40
    assert subjects_of(mailbox.get(":await", timeout=5)) == ["big"]


def test_deeply_nested_html_holds_nobody_up(open_mailbox: OpenMailbox) -> None:
    html = "<div><b>" * (2 * MEGABYTE // 8 - 10) + "the end"
    mailbox = open_mailbox([mail(1, content=f"Content-Type: text/html\r\n\r\n{html}")])
    responses: list[httpx.Response] = []
    reader = threading.Thread(target=lambda: responses.append(mailbox.get()))
    with at_most(20):
        reader.start()
        while reader.is_alive():
            with at_most(3), mailbox.api.client("-") as other:
                assert other.get("/healthz").status_code == 200
            reader.join(0.1)
    assert subjects_of(responses[0]) == ["1"]


def test_many_different_waiters_share_one_search_and_get_their_own_mail(
    open_mailbox: OpenMailbox, token: str
) -> None:
    """So many alternatives do not fit into one command, which then asks for more than is wanted."""
    count = 200
    mailbox = open_mailbox(mails(1))
    mailbox.server.script["UID SEARCH"] = naming_all(mailbox.server)
    subjects: dict[int, list[str]] = {}

    async def wait_for(client: httpx.AsyncClient, number: int) -> None:
        query = {"filter[subject]": f"code {number}.", "timeout": "25"}
        subjects[number] = subjects_of(await client.get(mailbox.path(":await"), params=query))

    async def wait_for_all() -> None:
        async with mailbox.api.async_client(token) as client, trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(wait_for, client, number)
            await trio.to_thread.run_sync(
                lambda: wait_until(lambda: mailbox.api.metric(IN_FLIGHT) == count, seconds=20)
            )
            mailbox.server.messages += [mail(10 + n, f"code {n}.") for n in range(count)]

    trio.run(wait_for_all)
    assert subjects == {number: [f"code {number}."] for number in range(count)}
    check_wire(mailbox.server)


@pytest.mark.parametrize("since", ["0001-01-01", "2026-03-02"])
def test_many_waiters_may_look_back_to_any_time(
    open_mailbox: OpenMailbox, token: str, since: str
) -> None:
    """Held up by the greeting, so that most of them look for the first time in one round."""
    begin = threading.Event()

    def greet(_args: str) -> None:
        begin.wait(20)

    mailbox = open_mailbox(mails(1), {"GREETING": greet})
    mailbox.server.script["UID SEARCH"] = naming_all(mailbox.server)
    statuses = []

    async def wait_for(client: httpx.AsyncClient, number: int) -> None:
        query = {"filter[subject]": f"code {number}", "timeout": "3", "since": since}
        response = await client.get(mailbox.path(":await"), params=query)
        statuses.append(response.status_code)
        assert response.json()["last_error"] is None or "no answer" in response.json()["last_error"]

    async def wait_for_all() -> None:
        async with mailbox.api.async_client(token) as client, trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(wait_for, client, number)
            await trio.to_thread.run_sync(
                lambda: wait_until(lambda: mailbox.api.metric(IN_FLIGHT) == 30, seconds=3)
            )
            begin.set()

    trio.run(wait_for_all)
    assert statuses == [408] * 30
    check_wire(mailbox.server)


def test_a_server_that_drips_does_not_outlast_the_time_given(open_mailbox: OpenMailbox) -> None:
    dripped = Drip(b"* 1 FETCH (UID 1 RFC822.SIZE 10 BODY[HEADER] {900}\r\n" + b"x" * 900, 0.05)
    mailbox = open_mailbox(mails(1), {"UID FETCH": dripped})
    with at_most(2.5):
        response = mailbox.get(":await", timeout=1)
    assert (response.status_code, response.json()["messages_seen"]) == (408, 0)
    with at_most(2 * IMAP_TIMEOUT_SECONDS + 4):
        response = check_response(mailbox.get())
    assert response.status_code == 502


def dying_at_fetch(server: ScriptedImap, dies: Callable[[int, str], bool]) -> Reply:
    """The connection ends within the answer to each FETCH of which `dies(number, args)` is true."""
    fetches = 0

    def reply(args: str) -> Close | None:
        nonlocal fetches
        fetches += 1
        usual = server.default_reply("UID FETCH", args)
        return Close(usual[: len(usual) // 2]) if dies(fetches, args) else None

    return reply


def test_a_server_that_always_dies_is_tried_again_until_the_end(
    open_mailbox: OpenMailbox,
) -> None:
    mailbox = open_mailbox(mails(1, 2))
    mailbox.server.script["UID FETCH"] = dying_at_fetch(mailbox.server, lambda *_: True)
    response = check_response(mailbox.get(":await", timeout=1.5))
    document = response.json()
    assert (response.status_code, document["rounds"], document["messages_seen"]) == (408, 0, 0)
    assert document["last_error"]
    assert mailbox.server.connections_total > 2
    assert check_response(mailbox.get()).status_code == 502
    check_wire(mailbox.server)


def test_messages_are_counted_once_however_often_a_look_breaks_off(
    open_mailbox: OpenMailbox,
) -> None:
    """The second batch of messages is never had in the first four rounds."""
    mailbox = open_mailbox(mails(*range(1, 16)))
    dies = dying_at_fetch(mailbox.server, lambda number, _args: number <= 8 and number % 2 == 0)
    mailbox.server.script["UID FETCH"] = dies
    wanted = {"filter[subject]": "nothing", "timeout": 3}
    document = mailbox.get(":await", **wanted).json()
    assert document["status"] == 408
    assert document["messages_seen"] == 15
    assert document["rejected_by"] == {"subject": 15}


def test_a_match_whose_text_cannot_be_had_is_counted_at_most_once(
    open_mailbox: OpenMailbox,
) -> None:
    mailbox = open_mailbox(mails(1, 2))
    dies = dying_at_fetch(mailbox.server, lambda _number, args: "BODYSTRUCTURE" not in args)
    mailbox.server.script["UID FETCH"] = dies
    document = mailbox.get(":await", **{"filter[subject]": "2", "timeout": 1.5}).json()
    assert document["status"] == 408
    assert document["messages_seen"] <= 2
    assert document["rejected_by"]["subject"] <= 1
    del mailbox.server.script["UID FETCH"]
    assert subjects_of(mailbox.get(":await", **{"filter[subject]": "2", "timeout": 5})) == ["2"]
