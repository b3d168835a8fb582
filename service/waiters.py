"""Who waits for what, and which waiter gets which message. Pure: no I/O, no clock.

A waiter's first look goes back as far as its query allows; each later one only at what is new
since. A look that broke off in the middle changes nothing of its waiters: the next one repeats it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import trio

from service.errors import MailroomError
from service.mail.matching import Envelope, Matcher
from service.mail.search import EVERYTHING, any_of, new_mail_criteria, query_criteria
from service.model import Cursor, Message, Query

NEWEST = "UID *"


@dataclass(frozen=True, slots=True)
class Found:
    """A waiter's message, and the cursor that asks for what arrived after it."""

    message: Message
    cursor: Cursor


@dataclass(slots=True)
class Place:
    """How far a mailbox has been looked at, in how many rounds. All who have done their first look
    share it, so that a round without news costs nothing for each of them."""

    seen: Cursor | None = None
    rounds: int = 0

    def advance(self, uidvalidity: int, seen_uid: int) -> None:
        """A round has come to its end; a server that does not say how far sends nobody back."""
        if self.seen is not None and self.seen.uidvalidity == uidvalidity:
            seen_uid = max(seen_uid, self.seen.uid)
        self.seen = Cursor(uidvalidity, seen_uid)
        self.rounds += 1


@dataclass(eq=False, slots=True)
class Waiter:
    """One client; it has a `place` once its first look is done."""

    query: Query
    deadline: float = math.inf
    is_single_look: bool = False
    took_part: bool = False
    place: Place | None = None
    rounds_before: int = 0
    messages_seen: int = 0
    rejected_by: Counter[str] = field(default_factory=Counter)
    last_error: str | None = None
    outcome: Found | MailroomError | None = None
    answered: trio.Event = field(default_factory=trio.Event)
    matcher: Matcher = field(init=False)

    def __post_init__(self) -> None:
        self.matcher = Matcher(self.query)

    def answer(self, outcome: Found | MailroomError) -> None:
        """Wake the client up; the first answer stays."""
        if self.outcome is None:
            self.outcome = outcome
            self.answered.set()

    @property
    def seen(self) -> Cursor | None:
        """How far its looks have come."""
        return None if self.place is None else self.place.seen

    @property
    def rounds(self) -> int:
        """How many looks have come to their end."""
        return 0 if self.place is None else self.place.rounds - self.rounds_before

    def follow(self, place: Place) -> None:
        """The first look is done, in the round that has just advanced the place."""
        if self.place is None:
            self.place = place
            self.rounds_before = place.rounds - 1

    def has_looked(self, uidvalidity: int) -> bool:
        """Whether only what is new is left to look at; a new UIDVALIDITY makes all of it new."""
        return self.seen is not None and self.seen.uidvalidity == uidvalidity

    def floor(self, uidvalidity: int) -> int | None:
        """The UID beyond which messages count for this waiter; None: there is no such limit."""
        cursor = self.seen if self.has_looked(uidvalidity) else self.query.after
        return cursor.uid if cursor is not None and cursor.uidvalidity == uidvalidity else None


def round_criteria(
    newcomers: Sequence[Waiter], followed_uid: int | None, uidvalidity: int, *, with_texts: bool
) -> str:
    """One SEARCH for all: what any of them may want, as narrow as one command can say it.

    `followed_uid` is the place of those whose first look is done; None without any.
    """
    alternatives = {
        first_criteria(waiter.query, waiter.floor(uidvalidity), with_texts=with_texts)
        for waiter in newcomers
    }
    if followed_uid is not None:
        alternatives.add(new_mail_criteria(followed_uid, None))
    return any_of(alternatives) or _coarse_criteria(newcomers, followed_uid, uidvalidity)


def first_criteria(query: Query, after_uid: int | None, *, with_texts: bool) -> str:
    """The SEARCH of a first look; who asks for nothing in particular gets the newest message."""
    if query == Query():
        return NEWEST
    return query_criteria(query, after_uid, with_texts=with_texts)


def _coarse_criteria(
    newcomers: Sequence[Waiter], followed_uid: int | None, uidvalidity: int
) -> str:
    floors = [] if followed_uid is None else [followed_uid]
    days = []
    for waiter in newcomers:
        floor, since = waiter.floor(uidvalidity), waiter.query.since
        if floor is not None:
            floors.append(floor)
        elif since is not None:
            days.append(since)
        else:
            return EVERYTHING
    alternatives = [new_mail_criteria(min(floors), None)] if floors else []
    if days:
        alternatives.append(new_mail_criteria(None, min(days)))
    return any_of(alternatives) or EVERYTHING


class Look:
    """One pass over messages, for waiters who look in the same direction."""

    def __init__(self, waiters: Iterable[Waiter], uidvalidity: int) -> None:
        self._all = list(waiters)
        self._open = {waiter: waiter.floor(uidvalidity) or 0 for waiter in self._all}
        self._shown: Counter[tuple[Waiter, tuple[str, ...]]] = Counter()

    @property
    def is_over(self) -> bool:
        """Whether everybody has found a message."""
        return not self._open

    @property
    def floor(self) -> int:
        """Nobody wants a message up to this UID."""
        return min(self._open.values(), default=0)

    def show(self, envelope: Envelope) -> list[Waiter]:
        """Show the next message; returns those whom it is for."""
        takers = []
        for waiter, floor in self._open.items():
            if envelope.uid > floor:
                rejections = waiter.matcher.rejections(envelope)
                if not rejections:
                    takers.append(waiter)
                self._shown[waiter, rejections] += 1
        return takers

    def give(self, takers: Iterable[Waiter], found: Found) -> None:
        """The message could be read: they have what they wait for."""
        for waiter in takers:
            del self._open[waiter]
            waiter.answer(found)

    def conclude(self, unreadable: Sequence[str]) -> None:
        """The round has come to its end: what was seen counts."""
        for (waiter, rejections), times in self._shown.items():
            waiter.messages_seen += times
            waiter.rejected_by.update(dict.fromkeys(rejections, times))
        if unreadable:
            for waiter in self._all:
                waiter.last_error = unreadable[-1]
