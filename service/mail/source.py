"""What a mailbox is to the rest, whosever server it is on: one open session that only reads.

IMAP, Gmail and Graph are three implementations of `MailSource`. A provider's own query is only a
pre-filter: it may name too many messages, never too few, and each is checked here again. Trouble
comes out as one of the `MailError` classes: `FetchRefused` costs a message, the others the session.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import ParamSpec, Protocol, TypeVar

from service.model import Cursor, FailedMessage, Overview, Query, Ref

P = ParamSpec("P")
T = TypeVar("T")

ServerRef = Mapping[str, str | int]
"""A message's name in jsonb, with what it takes to know whether it still means that message."""
Step = tuple[str, Callable[[], Awaitable[str]]]
"""A step of `mailbox test`: its name, and what does it and says what it found."""


class AccessTokens(Protocol):
    """The access token of one mailbox; its renewal is shared with the other replicas."""

    async def token(self) -> str:
        """A token that should be good. CredentialsRefused, MailboxThrottled, ConnectionLost."""
        ...

    async def renew(self, refused: str) -> str:
        """Another token than the one that the server has just refused. Errors as above."""
        ...


class News(Protocol):
    """What is new to the intake, batch by batch, in the order in which the cursor passes it."""

    @property
    def restart(self) -> str | None:
        """Why the cursor does not count any more and all is read anew; None: it counts."""
        ...

    @property
    def cursor(self) -> Cursor | None:
        """How far the mailbox has been read once all that `next_batch` gave is stored.

        None: nothing was given yet that a cursor could stand behind.
        """
        ...

    async def next_batch(self, limit: int) -> Sequence[Ref]:
        """Up to `limit` messages more; none: that was all. May name some that are gone by now."""
        ...

    def cursor_after(self, ref: Ref) -> Cursor:
        """How far it has been read once this one of the newest batch and all before it are."""
        ...


class Walk(Protocol):
    """Messages of a finding in one direction, page by page."""

    async def next_page(self, limit: int) -> Sequence[Ref]:
        """Up to `limit` messages more; none: that was all."""
        ...


class Finding(Protocol):
    """What may match any of the queries of one look. Arrival is the order in the folder."""

    @property
    def searched(self) -> str:
        """What the server was asked for, in its own terms, for people to read."""
        ...

    @property
    def cursor(self) -> Cursor:
        """Asks for what arrives after this look."""
        ...

    def cursor_behind(self, ref: Ref, received_at: datetime) -> Cursor:
        """Asks for what stands behind this message of the finding, and what arrives later."""
        ...

    def knows(self, cursor: Cursor) -> bool:
        """Whether the cursor counts; one of another folder or from long ago says nothing."""
        ...

    def is_beyond(self, ref: Ref, cursor: Cursor) -> bool:
        """Whether this message of the finding arrived after the cursor, which is known.

        Only for cursors that a query of the look had as its `after`.
        """
        ...

    def walk(self, *, newest_first: bool, after: Cursor | None = None) -> Walk:
        """The messages of the finding in this order: all, or those beyond a known `after`."""
        ...


class MailSource(Protocol):
    """A session on one folder of one mailbox. Begin with `open_news`, `look_up` or `open`."""

    @property
    def scope(self) -> ServerRef:
        """What all `server_ref`s that mean something in this folder have in common."""
        ...

    def server_ref(self, ref: Ref) -> ServerRef:
        """The message's name for the quarantine."""
        ...

    def find_ref(self, server_ref: ServerRef) -> Ref | None:
        """The message of that name; None when the name means another one now, or nothing."""
        ...

    def steps(self, since: datetime | None) -> Sequence[Step]:
        """What `mailbox test` does, one after the other, instead of all else. MailError."""
        ...

    async def open(self) -> None:
        """See that the folder is there. MailboxUnreachable."""
        ...

    async def open_news(self, cursor: Cursor | None, since: datetime | None) -> News:
        """What is beyond the cursor; without one that counts, what may have arrived since."""
        ...

    async def look_up(self, queries: Sequence[Query], *, newest_will_do: bool = False) -> Finding:
        """What may match any of these queries, each behind its `after` where that counts.

        `newest_will_do`: for `Query()`, which asks for nothing in particular.
        """
        ...

    async def list_present(self, refs: Sequence[Ref]) -> list[Ref]:
        """Which of these messages the folder still has."""
        ...

    async def fetch_overviews(
        self, refs: Sequence[Ref], read: Callable[[Overview | FailedMessage], T]
    ) -> list[T]:
        """Pass 1: what `read` makes of each of these messages, in their order.

        Those that are gone are left out. FetchRefused when one of them cannot be read.
        """
        ...

    async def fetch_sections(
        self, refs: Sequence[Ref], sections: Mapping[str, int]
    ) -> dict[Ref, dict[str, bytes]]:
        """The first `sections[s]` encoded bytes of each section of each message.

        Encoded as the overview's structure says. FetchRefused.
        """
        ...

    async def fetch_slice(self, ref: Ref, section: str, offset: int, size: int) -> bytes:
        """Up to `size` encoded bytes of one section from `offset`, fewer only at its end.

        Section "" is the whole message. Slices are asked for one behind the other. FetchRefused.
        """
        ...

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a long computation in a thread, in turn with the other sessions."""
        ...
