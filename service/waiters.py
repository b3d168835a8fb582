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


@dataclass(eq=False, slots=True)
class Waiter:
    """One client. `seen` is how far its looks have come, None before the first is done."""

    query: Query
    is_single_look: bool = False
    deadline: float = math.inf
    took_part: bool = False
    seen: Cursor | None = None
    rounds: int = 0
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

    def has_looked(self, uidvalidity: int) -> bool:
        """Whether only what is new is left to look at; a new UIDVALIDITY makes all of it new."""
        return self.seen is not None and self.seen.uidvalidity == uidvalidity

    def floor(self, uidvalidity: int) -> int | None:
        """The UID beyond which messages count for this waiter; None: there is no such limit."""
        cursor = self.seen if self.has_looked(uidvalidity) else self.query.after
        return cursor.uid if cursor is not None and cursor.uidvalidity == uidvalidity else None


def round_criteria(waiters: Sequence[Waiter], uidvalidity: int, *, with_texts: bool) -> str:
    """One SEARCH for all: what any of them may want, as narrow as one command can say it."""
    alternatives = []
    for waiter in waiters:
        floor = waiter.floor(uidvalidity)
        if waiter.has_looked(uidvalidity):
            alternatives.append(new_mail_criteria(floor, None))
        else:
            alternatives.append(first_criteria(waiter.query, floor, with_texts=with_texts))
    return any_of(alternatives) or _coarse_criteria(waiters, uidvalidity)


def first_criteria(query: Query, after_uid: int | None, *, with_texts: bool) -> str:
    """The SEARCH of a first look; who asks for nothing in particular gets the newest message."""
    if query == Query():
        return NEWEST
    return query_criteria(query, after_uid, with_texts=with_texts)


def _coarse_criteria(waiters: Sequence[Waiter], uidvalidity: int) -> str:
    floors = [waiter.floor(uidvalidity) for waiter in waiters]
    days = [
        waiter.query.since
        for waiter, floor in zip(waiters, floors, strict=True)
        if floor is None and waiter.query.since is not None
    ]
    known_floors = [floor for floor in floors if floor is not None]
    if len(known_floors) + len(days) < len(waiters):
        return EVERYTHING
    alternatives = []
    if known_floors:
        alternatives.append(new_mail_criteria(min(known_floors), None))
    if days:
        alternatives.append(new_mail_criteria(None, min(days)))
    return any_of(alternatives) or EVERYTHING


class Look:
    """One pass over messages, for waiters who look in the same direction."""

    def __init__(self, waiters: Iterable[Waiter], uidvalidity: int) -> None:
        self._uidvalidity = uidvalidity
        self._all = list(waiters)
        self._open = {waiter: waiter.floor(uidvalidity) or 0 for waiter in self._all}
        self._rejections: list[tuple[Waiter, tuple[str, ...]]] = []

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
                self._rejections.append((waiter, rejections))
        return takers

    def give(self, takers: Iterable[Waiter], found: Found) -> None:
        """The message could be read: they have what they wait for."""
        for waiter in takers:
            del self._open[waiter]
            waiter.answer(found)

    def conclude(self, seen_uid: int, unreadable: Sequence[str]) -> None:
        """All messages were shown: keep the counts, and go on from here next time."""
        seen = Cursor(self._uidvalidity, seen_uid)
        for waiter, rejections in self._rejections:
            waiter.messages_seen += 1
            waiter.rejected_by.update(rejections)
        for waiter in self._all:
            waiter.rounds += 1
            waiter.seen = seen
            if unreadable:
                waiter.last_error = unreadable[-1]
