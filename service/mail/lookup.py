"""Reading messages for a query from an open folder, in as few commands as it takes.

Pass 1 batch by batch, pass 2 for the texts of what matched; no file is ever read. A message that
cannot be read costs itself: it is left out and named in `unreadable`. A lost connection is raised.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import TypeVar

from service.errors import FetchRefused
from service.mail.matching import Envelope, read_envelope
from service.mail.message import Planned, attempt, plan_message, runs
from service.mail.messages import build_message
from service.mail.reader import PartReader
from service.mail.source import MailSource, Walk
from service.model import FailedMessage, Limits, Message, Overview, Ref

T = TypeVar("T")

BATCH_MESSAGES = (10, 40, 200)  # small first: a search often finds at once what it looks for
# Sense is made of a group in one go that cannot be cancelled, and HTML takes a second a MiB.
GROUP_MAX_BYTES = 256 * 1024
# A mail up to this size is made sense of sooner than another thread could begin with it.
SMALL_BYTES = 16 * 1024


class Pages:
    """The messages of a walk in growing pages."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._sizes = chain(BATCH_MESSAGES, repeat(BATCH_MESSAGES[-1]))

    async def next(self) -> Sequence[Ref]:
        """The next page; none after the last one."""
        return await self._walk.next_page(next(self._sizes))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message after pass 1."""

    planned: Planned
    envelope: Envelope

    @property
    def ref(self) -> Ref:
        return self.planned.ref


class Lookup:
    """Reads over one source; `unreadable` says of each message left out why it was."""

    def __init__(self, source: MailSource, limits: Limits) -> None:
        self.unreadable: list[str] = []
        self._source = source
        self._limits = limits
        self._reader = PartReader(source, limits.max_file_bytes)

    async def candidates(self, refs: Sequence[Ref]) -> list[Candidate]:
        """Pass 1 for these messages, in their order."""
        found = {one.ref: one for one in await self._fetch(refs)} if refs else {}
        return [found[ref] for ref in refs if ref in found]

    async def _fetch(self, refs: Sequence[Ref]) -> list[Candidate]:
        """The message that makes the fetch fail is found by halving."""
        read = partial(_read_candidate, limits=self._limits)
        try:
            return self._readable(await self._source.fetch_overviews(refs, read))
        except FetchRefused as error:
            if len(refs) == 1:
                self._leave_out(refs[0], error)
                return []
            middle = len(refs) // 2
            return [*await self._fetch(refs[:middle]), *await self._fetch(refs[middle:])]

    async def messages(self, candidates: Sequence[Candidate]) -> list[Message]:
        """Pass 2 for these messages, in their order."""
        planned = [candidate.planned for candidate in candidates]
        return [
            message
            for group in runs(planned, _text_bytes, GROUP_MAX_BYTES)
            for message in await self._read_messages(group)
        ]

    async def _read_messages(self, group: Sequence[Planned]) -> list[Message]:
        try:
            texts = await self._reader.fetch_texts(group)
        except FetchRefused as error:
            if len(group) == 1:
                self._leave_out(group[0].ref, error)
                return []
            return [message for one in group for message in await self._read_messages([one])]
        if sum(_build_bytes(one, texts[one.ref]) for one in group) <= SMALL_BYTES:
            return self._readable(_build_all(group, texts))
        return self._readable(await self._source.compute(_build_all, group, texts))

    def _readable(self, entries: Iterable[T | FailedMessage]) -> list[T]:
        kept = []
        for entry in entries:
            if isinstance(entry, FailedMessage):
                self._leave_out(entry.ref, entry.error)
            else:
                kept.append(entry)
        return kept

    def _leave_out(self, ref: Ref, error: object) -> None:
        self.unreadable.append(f"message {ref} cannot be read: {error}")


def _read_candidate(
    overview: Overview | FailedMessage, limits: Limits
) -> Candidate | FailedMessage:
    planned = plan_message(overview, limits)
    if isinstance(planned, FailedMessage):
        return planned
    return Candidate(planned, read_envelope(planned.overview))


def _text_bytes(planned: Planned) -> int:
    """Encoded octets of text to read of a message, by what the structure says."""
    return sum(min(text.read_bytes, text.part.size_bytes) for text in planned.plan.texts)


def _build_bytes(planned: Planned, texts: Mapping[str, bytes]) -> int:
    return len(planned.overview.header) + sum(map(len, texts.values()))


def _build_all(
    group: Sequence[Planned], texts: Mapping[Ref, Mapping[str, bytes]]
) -> list[Message | FailedMessage]:
    return [attempt(planned.ref, build_message, planned, texts[planned.ref]) for planned in group]
