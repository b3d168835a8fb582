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
from service.mail.source import Finding
from service.model import Cursor, ImapCursor, Message, Query, Ref


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

    def advance(self, seen: Cursor) -> None:
        """A round has come to its end; a server that does not say how far sends nobody back."""
        if not _is_behind(seen, self.seen):
            self.seen = seen
        self.rounds += 1


def _is_behind(cursor: Cursor, seen: Cursor | None) -> bool:
    """Whether a folder without UIDNEXT has lost its last messages."""
    if not (isinstance(cursor, ImapCursor) and isinstance(seen, ImapCursor)):
        return False
    return cursor.uidvalidity == seen.uidvalidity and cursor.uid < seen.uid


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
    searched: str | None = None
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

    def has_looked(self, finding: Finding) -> bool:
        """Whether only what is new is left to look at; in another folder all of it is new."""
        return self.seen is not None and finding.knows(self.seen)

    def after(self, finding: Finding) -> Cursor | None:
        """The cursor beyond which messages count for this waiter; None: all of them do."""
        cursor = self.seen if self.has_looked(finding) else self.query.after
        return cursor if cursor is not None and finding.knows(cursor) else None


class Look:
    """One pass over messages, for waiters who look in the same direction."""

    def __init__(self, waiters: Iterable[Waiter], finding: Finding) -> None:
        self._all = list(waiters)
        self._finding = finding
        self._open: dict[Cursor | None, dict[Waiter, None]] = {}
        for waiter in self._all:
            self._open.setdefault(waiter.after(finding), {})[waiter] = None
        self._shown: Counter[tuple[Waiter, tuple[str, ...]]] = Counter()

    @property
    def is_over(self) -> bool:
        """Whether everybody has found a message."""
        return not self._open

    @property
    def after(self) -> Cursor | None:
        """Nobody wants a message up to this cursor; None: there is no such place."""
        return next(iter(self._open)) if len(self._open) == 1 else None

    def wants(self, ref: Ref) -> bool:
        """Whether the message counts for anybody."""
        return any(self._counts(ref, after) for after in self._open)

    def _counts(self, ref: Ref, after: Cursor | None) -> bool:
        return after is None or self._finding.is_beyond(ref, after)

    def show(self, envelope: Envelope) -> list[Waiter]:
        """Show the next message; returns those whom it is for."""
        takers = []
        for after, waiters in self._open.items():
            if self._counts(envelope.ref, after):
                for waiter in waiters:
                    rejections = waiter.matcher.rejections(envelope)
                    if not rejections:
                        takers.append(waiter)
                    self._shown[waiter, rejections] += 1
        return takers

    def give(self, takers: Iterable[Waiter], found: Found) -> None:
        """The message could be read: they have what they wait for."""
        served = set(takers)
        for waiter in served:
            waiter.answer(found)
        left = {
            after: {waiter: None for waiter in waiters if waiter not in served}
            for after, waiters in self._open.items()
        }
        self._open = {after: waiters for after, waiters in left.items() if waiters}

    def conclude(self, unreadable: Sequence[str]) -> None:
        """The round has come to its end: what was seen counts."""
        for (waiter, rejections), times in self._shown.items():
            waiter.messages_seen += times
            waiter.rejected_by.update(dict.fromkeys(rejections, times))
        if unreadable:
            for waiter in self._all:
                waiter.last_error = unreadable[-1]
