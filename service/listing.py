"""Looking into a mailbox at once: a list of messages, or one of them. Read live, over one session.

MailError when the mail server cannot be used, or takes too long.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.db.mailboxes import Access
from service.mail.lookup import Candidate, Lookup, Pages
from service.mail.matching import Matcher
from service.mail.source import Walk
from service.model import Cursor, Message, Query, Ref
from service.opener import MailboxOpener
from service.settings import Settings

# A page of monstrous mails ends early: its texts and HTML have to fit into memory.
PAGE_MAX_CHARS = 16 * 1024 * 1024
MESSAGES_PER_READ = 20


@dataclass(frozen=True, slots=True)
class Listing:
    """Messages in their order, the search that found them, and the cursor for what comes next."""

    messages: Sequence[Message]
    searched: str
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
        async with self._opener.look(access) as source:
            finding = await source.look_up([query])
            after = query.after if query.after and finding.knows(query.after) else None
            walk = finding.walk(newest_first=not query.is_earliest_first, after=after)
            page = _Page(Lookup(source, self._limits), Matcher(query), limit)
            await page.fill(walk)
        cursor = finding.cursor
        if page.is_full and query.is_earliest_first:
            last = page.messages[-1]
            cursor = finding.cursor_behind(last.email_id, last.datetime)
        return Listing(page.messages, finding.searched, cursor)

    async def show(self, access: Access, ref: Ref) -> Listing:
        """One message by its `email_id`; none if it is not there."""
        async with self._opener.look(access) as source:
            finding = await source.look_up([Query()], newest_will_do=True)
            lookup = Lookup(source, self._limits)
            messages = await lookup.messages(await lookup.candidates([ref]))
            *_, name = source.server_ref(ref)
        cursor = finding.cursor_behind(ref, messages[0].datetime) if messages else finding.cursor
        return Listing(messages, f"{name.upper()} {ref}", cursor)


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

    async def fill(self, walk: Walk) -> None:
        """Take matches in the order of the walk."""
        pages = Pages(walk)
        while not self.is_full and (page := await pages.next()):
            candidates = await self._lookup.candidates(page)
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
