"""Who gets which message, and what one SEARCH has to ask for all who wait."""

from datetime import UTC, datetime, timedelta
from typing import cast

from service.errors import CredentialsRefused, ServiceStopping
from service.mail.imap_finding import Folder, ImapFinding
from service.mail.matching import Envelope
from service.model import ImapCursor, Message, Query
from service.waiters import Found, Look, Place, Waiter

FOUND = Found(cast(Message, None), ImapCursor(7, 1))
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
VALIDITY = 7


def envelope(uid: int, subject: str = "hello", *, received_at: datetime = NOON) -> Envelope:
    sender, recipient = "\nanna <anna@example.com>", "\nbob <bob@example.com>"
    return Envelope(str(uid), "\n" + subject, sender, recipient, received_at)


def waiter(seen_uid: int | None = None, **query: object) -> Waiter:
    """One that has seen all up to `seen_uid`."""
    place = None if seen_uid is None else Place(ImapCursor(VALIDITY, seen_uid))
    return Waiter(Query(**query), place=place)  # type: ignore[arg-type]


def finding(uidvalidity: int = VALIDITY) -> ImapFinding:
    """What a folder of this UIDVALIDITY gives."""
    return ImapFinding(Folder(0, uidvalidity, 0), "ALL", [])


def take(look: Look, one: Envelope) -> list[Waiter]:
    """Show a message that can be read; who gets it."""
    takers = look.show(one)
    look.give(takers, FOUND)
    return takers


def test_a_message_is_for_everybody_whose_filters_it_passes() -> None:
    anybody, from_anna = waiter(), waiter(sender="anna@")
    hello_only, goodbye_only = waiter(subject="hello"), waiter(subject="goodbye")
    look = Look([anybody, from_anna, hello_only, goodbye_only], finding())
    assert take(look, envelope(1)) == [anybody, from_anna, hello_only]
    assert take(look, envelope(2, "goodbye")) == [goodbye_only]
    assert look.is_over


def test_who_has_a_message_takes_no_second_one() -> None:
    only = waiter()
    look = Look([only], finding())
    assert take(look, envelope(1)) == [only]
    assert take(look, envelope(2)) == []


def test_a_message_that_cannot_be_read_leaves_its_waiter_the_next_one() -> None:
    one = waiter()
    look = Look([one], finding())
    assert look.show(envelope(1)) == [one]
    assert take(look, envelope(2)) == [one]
    assert one.outcome == FOUND


def test_what_a_waiter_has_seen_is_not_shown_to_it_again() -> None:
    newcomer, old = waiter(), waiter(seen_uid=5)
    look = Look([newcomer, old], finding())
    assert take(look, envelope(5)) == [newcomer]
    assert take(look, envelope(6)) == [old]


def test_a_cursor_of_the_client_counts_like_what_was_seen() -> None:
    one = waiter(after=ImapCursor(VALIDITY, 5))
    look = Look([one], finding())
    assert take(look, envelope(5)) == []
    assert take(look, envelope(6)) == [one]


def test_under_a_new_uidvalidity_everything_is_new() -> None:
    one, other = waiter(seen_uid=5), waiter(after=ImapCursor(VALIDITY, 5))
    look = Look([one, other], finding(VALIDITY + 1))
    assert take(look, envelope(1)) == [one, other]


def test_a_look_that_broke_off_changes_nothing() -> None:
    one = waiter(subject="invoice")
    look = Look([one], finding())
    take(look, envelope(1))
    assert (one.seen, one.rounds, one.messages_seen, one.rejected_by) == (None, 0, 0, {})


def test_a_whole_look_counts_what_was_seen_and_which_filters_turned_it_away() -> None:
    one = waiter(subject="invoice", recipient="bob", since=NOON)
    look = Look([one], finding())
    take(look, envelope(1, "hello"))
    take(look, envelope(2, "invoice", received_at=NOON - timedelta(seconds=1)))
    take(look, envelope(3, "other", received_at=NOON - timedelta(seconds=1)))
    look.conclude([])
    assert one.messages_seen == 3
    assert one.rejected_by == {"subject": 2, "since": 2}
    assert one.last_error is None


def test_all_whose_first_look_is_done_share_their_place() -> None:
    place, first, second = Place(), waiter(), waiter()
    place.advance(ImapCursor(VALIDITY, 3))
    first.follow(place)
    place.advance(ImapCursor(VALIDITY, 5))
    first.follow(place)
    second.follow(place)
    assert (first.seen, first.rounds) == (ImapCursor(VALIDITY, 5), 2)
    assert (second.seen, second.rounds) == (ImapCursor(VALIDITY, 5), 1)


def test_a_place_goes_back_under_a_new_uidvalidity_only() -> None:
    place = Place()
    place.advance(ImapCursor(VALIDITY, 5))
    place.advance(ImapCursor(VALIDITY, 0))
    assert place.seen == ImapCursor(VALIDITY, 5)
    place.advance(ImapCursor(VALIDITY + 1, 2))
    assert place.seen == ImapCursor(VALIDITY + 1, 2)


def test_a_message_that_could_not_be_read_is_named() -> None:
    one = waiter()
    Look([one], finding()).conclude(["message 8 cannot be read: NO", "message 9 ...: BAD"])
    assert one.last_error == "message 9 ...: BAD"


def test_the_first_answer_stays() -> None:
    one = waiter()
    one.answer(CredentialsRefused("no"))
    one.answer(ServiceStopping("bye"))
    assert isinstance(one.outcome, CredentialsRefused)
    assert one.answered.is_set()
