"""Pages and cursors: nothing is lost and nothing comes twice, from the index to a wait and back."""

import itertools

import httpx
import pytest

from tests.servers import Dovecot
from tests.system.api import Api
from tests.system.messages.box import Box, assert_problem, mail, subjects


@pytest.fixture
def start(box: Box) -> str:
    """The cursor of the box while it is empty."""
    return str(box.found()["meta"]["cursor"])


def test_the_index_gives_the_newest_first_and_a_cursor_for_what_comes_next(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, *[mail(f"Mail {number}") for number in range(1, 8)])
    newest = box.found(limit=3)
    assert subjects(newest) == ["Mail 7", "Mail 6", "Mail 5"]
    dovecot.append(mailbox, mail("Mail 8"))
    assert box.subjects(after=newest["meta"]["cursor"]) == ["Mail 8"]


@pytest.mark.parametrize("beginning", ["after", "since"])
def test_pages_from_end_to_end_lose_and_repeat_nothing(
    box: Box, start: str, mailbox: str, dovecot: Dovecot, beginning: str
) -> None:
    dovecot.append(mailbox, *[mail(f"Mail {number}") for number in range(1, 8)])
    pages = [box.found(limit=3, **{beginning: start if beginning == "after" else "2020-01-01"})]
    while pages[-1]["data"]["collection"]:
        pages.append(box.found(limit=3, after=pages[-1]["meta"]["cursor"]))
    assert [page["meta"]["emails_count"] for page in pages] == [3, 3, 1, 0]
    listed = list(itertools.chain.from_iterable(map(subjects, pages)))
    assert listed == [f"Mail {number}" for number in range(1, 8)]


def test_pages_of_a_filter_lose_and_repeat_nothing(
    box: Box, start: str, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, *[mail(f"{'even' if n % 2 == 0 else 'odd'} {n}") for n in range(7)])
    first = box.found(limit=3, after=start, subject="even")
    second = box.found(limit=3, after=first["meta"]["cursor"], subject="even")
    assert [subjects(first), subjects(second)] == [["even 0", "even 2", "even 4"], ["even 6"]]


def test_a_page_has_50_messages_unless_asked_otherwise(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.write_maildir(mailbox, [mail(f"Mail {number}") for number in range(1, 61)])
    assert box.subjects() == [f"Mail {number}" for number in range(60, 10, -1)]
    assert len(box.subjects(limit=200)) == 60


@pytest.mark.parametrize(
    ("beginning", "subject"), [(None, "third"), ("since", "first"), ("after", "first")]
)
def test_a_wait_takes_the_newest_or_from_a_beginning_the_earliest(
    box: Box, start: str, mailbox: str, dovecot: Dovecot, beginning: str | None, subject: str
) -> None:
    dovecot.append(mailbox, mail("first"), mail("second"), mail("third"))
    beginnings = {None: {}, "since": {"since": "2020-01-01"}, "after": {"after": start}}
    assert box.subjects(":await", **beginnings[beginning]) == [subject]


def test_the_cursor_of_a_wait_that_found_something_goes_on_behind_it(
    box: Box, start: str, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, mail("first"), mail("second"), mail("third"))
    cursor, taken = start, []
    for _ in range(3):
        document = box.found(":await", after=cursor)
        cursor = document["meta"]["cursor"]
        taken += subjects(document)
    assert taken == ["first", "second", "third"]
    assert box.get(":await", after=cursor).status_code == 408


def test_the_cursor_of_a_408_goes_on_behind_what_it_saw(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, mail("seen"))
    cursor = box.get(":await", subject="later").json()["cursor"]
    dovecot.append(mailbox, mail("later"))
    assert box.subjects(after=cursor) == ["later"]
    assert box.subjects(":await", after=cursor) == ["later"]


def test_the_cursor_of_an_empty_mailbox_shows_all_that_comes(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    cursor = box.get(":await").json()["cursor"]
    dovecot.append(mailbox, mail("first"))
    assert box.subjects(":await", after=cursor) == ["first"]


@pytest.mark.parametrize("route", ["", ":await"])
def test_a_cursor_of_another_mailbox_is_refused(
    api: Api, client: httpx.Client, box: Box, start: str, dovecot: Dovecot, route: str
) -> None:
    user = dovecot.new_user()
    api.add_mailbox(user, dovecot.imap_port)
    assert_problem(Box(client, user).get(route, after=start), 422, "invalid-request")


def test_a_cursor_from_before_a_new_uidvalidity_loses_nothing(
    box: Box, mailbox: str, dovecot: Dovecot
) -> None:
    dovecot.append(mailbox, mail("first"), mail("second"))
    cursor = box.found()["meta"]["cursor"]
    dovecot.change_uidvalidity(mailbox)
    assert box.subjects(":await", after=cursor) == ["first"]
    assert box.subjects(after=cursor) == ["first", "second"]
