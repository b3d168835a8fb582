"""Looking into a mailbox at once: a list of messages, or one of them. Read live, over one session.

MailError when the mail server cannot be used, or takes too long.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.db.mailboxes import Access
from service.mail.imap import Folder
from service.mail.lookup import Candidate, Lookup, batches
from service.mail.matching import Matcher
from service.mail.search import query_criteria
from service.model import Cursor, Message, Query
from service.opener import MailboxOpener
from service.settings import Settings

# A page of monstrous mails ends early: its texts and HTML have to fit into memory.
PAGE_MAX_CHARS = 16 * 1024 * 1024
MESSAGES_PER_READ = 20


@dataclass(frozen=True, slots=True)
class Listing:
    """Messages in their order, the SEARCH that found them, and the cursor for what comes next."""

    messages: Sequence[Message]
    imap_search: str
    cursor: Cursor


class Listings:
    """Reads with what the process shares."""

    def __init__(self, opener: MailboxOpener, settings: Settings) -> None:
        self._opener = opener
        self._limits = settings.limits

    async def index(self, access: Access, query: Query, limit: int) -> Listing:
        """Up to `limit` matches: the newest first, or from a beginning on the earliest first.

        The cursor of the latter goes on behind the last one listed.
        """
        async with self._opener.look(access) as session:
            finding = await session.look_up(
                lambda folder: query_criteria(
                    query, _floor(query, folder), with_texts=not session.searches_words
                )
            )
            floor = _floor(query, finding.folder) or 0
            uids = [uid for uid in finding.uids if uid > floor]
            page = _Page(Lookup(session, self._limits), Matcher(query), limit)
            await page.fill(uids if query.is_earliest_first else uids[::-1])
        go_on = page.is_full and query.is_earliest_first
        seen_uid = int(page.messages[-1].email_id) if go_on else finding.seen_uid
        return Listing(
            page.messages, finding.criteria, Cursor(finding.folder.uidvalidity, seen_uid)
        )

    async def show(self, access: Access, uid: int) -> Listing:
        """One message by its UID; none if it is not there."""
        async with self._opener.look(access) as session:
            folder = await session.examine()
            lookup = Lookup(session, self._limits)
            candidates = await lookup.candidates([uid])
            messages = await lookup.messages(candidates)
        return Listing(messages, f"UID {uid}", Cursor(folder.uidvalidity, uid))


def _floor(query: Query, folder: Folder) -> int | None:
    """The UID beyond which messages count; a cursor of another UIDVALIDITY says nothing."""
    after = query.after
    return after.uid if after is not None and after.uidvalidity == folder.uidvalidity else None


class _Page:
    """Matches up to a limit."""

    def __init__(self, lookup: Lookup, matcher: Matcher, limit: int) -> None:
        self.messages: list[Message] = []
        self._lookup = lookup
        self._matcher = matcher
        self._limit = limit
        self._chars = 0

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= self._limit or self._chars >= PAGE_MAX_CHARS

    async def fill(self, uids: Sequence[int]) -> None:
        """Take matches in the order of `uids`."""
        for batch in batches(uids):
            if self.is_full:
                return
            candidates = await self._lookup.candidates(batch)
            matches = [one for one in candidates if not self._matcher.rejections(one.envelope)]
            for start in range(0, len(matches), MESSAGES_PER_READ):
                await self._read(matches[start:][:MESSAGES_PER_READ])

    async def _read(self, matches: Sequence[Candidate]) -> None:
        if self.is_full:
            return
        wanted = matches[: self._limit - len(self.messages)]
        for message in await self._lookup.messages(wanted):
            self.messages.append(message)
            self._chars += len(message.message) + len(message.html or "")
