"""What SEARCH found, in the forms that the intake and the looks of clients take it in. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from service.model import Cursor, ImapCursor, Ref


@dataclass(frozen=True, slots=True)
class Folder:
    """What EXAMINE said; `uidvalidity` and `uidnext` are 0 when the server gives none."""

    exists: int
    uidvalidity: int
    uidnext: int


@dataclass(frozen=True, slots=True)
class ImapFinding:
    """What SEARCH said by the criteria `searched`: ascending UIDs. A `Finding`."""

    folder: Folder
    searched: str
    uids: Sequence[int]

    @property
    def cursor(self) -> ImapCursor:
        """What was there when the folder was opened."""
        newest = self.uids[-1] if self.uids else 0
        uid = self.folder.uidnext - 1 if self.folder.uidnext else newest
        return ImapCursor(self.folder.uidvalidity, uid)

    def cursor_behind(self, ref: Ref, received_at: datetime) -> ImapCursor:  # noqa: ARG002
        """UIDs grow in the order of arrival."""
        return ImapCursor(self.folder.uidvalidity, int(ref))

    def knows(self, cursor: Cursor) -> bool:
        """Under another UIDVALIDITY the UIDs mean other messages."""
        return isinstance(cursor, ImapCursor) and cursor.uidvalidity == self.folder.uidvalidity

    def is_beyond(self, ref: Ref, cursor: Cursor) -> bool:
        """By the UID."""
        return isinstance(cursor, ImapCursor) and int(ref) > cursor.uid

    def walk(self, *, newest_first: bool, after: Cursor | None = None) -> "UidWalk":
        """Nothing is asked of the server for it."""
        floor = after.uid if isinstance(after, ImapCursor) else 0
        uids = [uid for uid in self.uids if uid > floor]
        return UidWalk(uids[::-1] if newest_first else uids)


class UidWalk:
    """UIDs, page by page. A `Walk`."""

    def __init__(self, uids: Sequence[int]) -> None:
        self._uids = uids
        self._at = 0

    async def next_page(self, limit: int) -> Sequence[Ref]:
        """The next ones."""
        page = self._uids[self._at : self._at + limit]
        self._at += len(page)
        return [str(uid) for uid in page]


class ImapNews:
    """UIDs beyond the cursor. `News`."""

    def __init__(
        self, uidvalidity: int, after_uid: int | None, uids: Sequence[int], restart: str | None
    ) -> None:
        self.restart = restart
        self._uidvalidity = uidvalidity
        self._uid = after_uid
        self._walk = UidWalk(uids)

    @property
    def cursor(self) -> ImapCursor | None:
        """The last UID given."""
        return None if self._uid is None else ImapCursor(self._uidvalidity, self._uid)

    async def next_batch(self, limit: int) -> Sequence[Ref]:
        """The next UIDs, ascending."""
        refs = await self._walk.next_page(limit)
        if refs:
            self._uid = int(refs[-1])
        return refs

    def cursor_after(self, ref: Ref) -> ImapCursor:
        """UIDs grow in the order of arrival."""
        return ImapCursor(self._uidvalidity, int(ref))
