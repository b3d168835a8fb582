"""Who gets which message, and what one SEARCH has to ask for all who wait."""

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from service.errors import CredentialsRefused, ServiceStopping
from service.mail.matching import Envelope
from service.model import Cursor, Message, Query
from service.waiters import Found, Look, Place, Waiter, first_criteria, round_criteria

FOUND = Found(cast(Message, None), Cursor(7, 1))
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
VALIDITY = 7


def envelope(uid: int, subject: str = "hello", *, received_at: datetime = NOON) -> Envelope:
    sender, recipient = "\nanna <anna@example.com>", "\nbob <bob@example.com>"
    return Envelope(uid, "\n" + subject, sender, recipient, received_at)


def waiter(seen_uid: int | None = None, **query: object) -> Waiter:
    """One that has seen all up to `seen_uid`."""
    place = None if seen_uid is None else Place(Cursor(VALIDITY, seen_uid))
    return Waiter(Query(**query), place=place)  # type: ignore[arg-type]


def take(look: Look, one: Envelope) -> list[Waiter]:
    """Show a message that can be read; who gets it."""
    takers = look.show(one)
    look.give(takers, FOUND)
    return takers


def criteria(*waiters: Waiter, with_texts: bool = True, uidvalidity: int = VALIDITY) -> str:
    """Of those who follow any is as good as all: they share their place."""
    newcomers = [one for one in waiters if not one.has_looked(uidvalidity)]
    followed = [one.seen.uid for one in waiters if one.seen and one not in newcomers]
    followed_uid = followed[0] if followed else None
    return round_criteria(newcomers, followed_uid, uidvalidity, with_texts=with_texts)


def test_a_message_is_for_everybody_whose_filters_it_passes() -> None:
    anybody, from_anna = waiter(), waiter(sender="anna@")
    hello_only, goodbye_only = waiter(subject="hello"), waiter(subject="goodbye")
    look = Look([anybody, from_anna, hello_only, goodbye_only], VALIDITY)
    assert take(look, envelope(1)) == [anybody, from_anna, hello_only]
    assert take(look, envelope(2, "goodbye")) == [goodbye_only]
    assert look.is_over


def test_who_has_a_message_takes_no_second_one() -> None:
    only = waiter()
    look = Look([only], VALIDITY)
    assert take(look, envelope(1)) == [only]
    assert take(look, envelope(2)) == []


def test_a_message_that_cannot_be_read_leaves_its_waiter_the_next_one() -> None:
    one = waiter()
    look = Look([one], VALIDITY)
    assert look.show(envelope(1)) == [one]
    assert take(look, envelope(2)) == [one]
    assert one.outcome == FOUND


def test_what_a_waiter_has_seen_is_not_shown_to_it_again() -> None:
    newcomer, old = waiter(), waiter(seen_uid=5)
    look = Look([newcomer, old], VALIDITY)
    assert take(look, envelope(5)) == [newcomer]
    assert take(look, envelope(6)) == [old]


def test_a_cursor_of_the_client_counts_like_what_was_seen() -> None:
    one = waiter(after=Cursor(VALIDITY, 5))
    look = Look([one], VALIDITY)
    assert take(look, envelope(5)) == []
    assert take(look, envelope(6)) == [one]


def test_under_a_new_uidvalidity_everything_is_new() -> None:
    one, other = waiter(seen_uid=5), waiter(after=Cursor(VALIDITY, 5))
    look = Look([one, other], VALIDITY + 1)
    assert take(look, envelope(1)) == [one, other]


def test_a_look_that_broke_off_changes_nothing() -> None:
    one = waiter(subject="invoice")
    look = Look([one], VALIDITY)
    take(look, envelope(1))
    assert (one.seen, one.rounds, one.messages_seen, one.rejected_by) == (None, 0, 0, {})


def test_a_whole_look_counts_what_was_seen_and_which_filters_turned_it_away() -> None:
    one = waiter(subject="invoice", recipient="bob", since=NOON)
    look = Look([one], VALIDITY)
    take(look, envelope(1, "hello"))
    take(look, envelope(2, "invoice", received_at=NOON - timedelta(seconds=1)))
    take(look, envelope(3, "other", received_at=NOON - timedelta(seconds=1)))
    look.conclude([])
    assert one.messages_seen == 3
    assert one.rejected_by == {"subject": 2, "since": 2}
    assert one.last_error is None


def test_all_whose_first_look_is_done_share_their_place() -> None:
    place, first, second = Place(), waiter(), waiter()
    place.advance(VALIDITY, 3)
    first.follow(place)
    place.advance(VALIDITY, 5)
    first.follow(place)
    second.follow(place)
    assert (first.seen, first.rounds) == (Cursor(VALIDITY, 5), 2)
    assert (second.seen, second.rounds) == (Cursor(VALIDITY, 5), 1)


def test_a_place_goes_back_under_a_new_uidvalidity_only() -> None:
    place = Place()
    place.advance(VALIDITY, 5)
    place.advance(VALIDITY, 0)
    assert place.seen == Cursor(VALIDITY, 5)
    place.advance(VALIDITY + 1, 2)
    assert place.seen == Cursor(VALIDITY + 1, 2)


def test_a_message_that_could_not_be_read_is_named() -> None:
    one = waiter()
    Look([one], VALIDITY).conclude(["message 8 cannot be read: NO", "message 9 ...: BAD"])
    assert one.last_error == "message 9 ...: BAD"


def test_the_first_answer_stays() -> None:
    one = waiter()
    one.answer(CredentialsRefused("no"))
    one.answer(ServiceStopping("bye"))
    assert isinstance(one.outcome, CredentialsRefused)
    assert one.answered.is_set()


SUBJECT = 'SUBJECT "code"'


@pytest.mark.parametrize(
    ("waiters", "expected"),
    [
        ([waiter()], "UID *"),
        ([waiter(subject="code")], SUBJECT),
        ([waiter(subject="code", after=Cursor(VALIDITY, 4))], "UID 5:*"),
        ([waiter(subject="code", after=Cursor(VALIDITY - 1, 4))], SUBJECT),
        ([waiter(subject="code", since=NOON)], f"{SUBJECT} SINCE 02-Mar-2026"),
        ([waiter(seen_uid=9, subject="code", since=NOON)], "UID 10:*"),
        ([waiter(seen_uid=9), waiter(seen_uid=9, subject="code")], "UID 10:*"),
        ([waiter(seen_uid=9), waiter(subject="code")], f"OR (UID 10:*) ({SUBJECT})"),
        ([waiter(subject="код")], "ALL"),
        ([waiter(subject="код"), waiter(seen_uid=9)], "ALL"),
    ],
)
def test_one_search_asks_for_all(waiters: list[Waiter], expected: str) -> None:
    assert criteria(*waiters) == expected


def test_a_server_that_finds_words_only_is_not_asked_for_texts() -> None:
    assert criteria(waiter(subject="code"), with_texts=False) == "ALL"
    dated = waiter(subject="code", since=NOON)
    assert criteria(dated, with_texts=False) == "SINCE 02-Mar-2026"


def test_a_new_uidvalidity_makes_the_next_look_a_first_one() -> None:
    assert criteria(waiter(seen_uid=9, subject="code"), uidvalidity=VALIDITY + 1) == SUBJECT


def test_too_many_alternatives_become_the_narrowest_common_ones() -> None:
    dated = [waiter(subject=f"n{n}", since=NOON + timedelta(days=n)) for n in range(30)]
    followers = [waiter(seen_uid=100), waiter(subject="a", after=Cursor(VALIDITY, 50))]
    assert criteria(*dated) == "SINCE 02-Mar-2026"
    assert criteria(*dated, *followers) == "OR (UID 51:*) (SINCE 02-Mar-2026)"
    assert criteria(*dated, waiter(subject="b")) == "ALL"


def test_a_command_line_stays_short() -> None:
    long_ones = [waiter(subject=f"{n}" * 900, since=NOON) for n in range(5)]
    assert criteria(*long_ones) == "SINCE 02-Mar-2026"
    assert criteria(long_ones[0]) == f'SUBJECT "{"0" * 900}" SINCE 02-Mar-2026'


def test_all_filters_are_on_the_wire() -> None:
    query = Query(subject="Invoice", sender="alice@example.com", recipient="b@", since=NOON)
    expected = 'SUBJECT "Invoice" FROM "alice@example.com" TO "b@" SINCE 02-Mar-2026'
    assert first_criteria(query, None, with_texts=True) == expected
