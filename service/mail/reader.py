"""Pass 2: reading the texts and files that the triage wants, in as few commands as it takes.

Memory is bounded by a slice for each part under way: a large file goes through a temporary file.
FetchRefused when the server gives nothing of a message that it listed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import TypeVar

from service.errors import FetchRefused
from service.mail.compose import Content, Draft
from service.mail.imap import ImapSession
from service.mail.message import Planned
from service.mail.text import TransferDecoder, decode_transfer
from service.mail.triage import PlannedFile, worth_reading

SLICE_BYTES = 1024 * 1024
SECTIONS_PER_FETCH = 50

T = TypeVar("T")


class PartReader:
    """Reads parts of messages over one session; nothing beyond `max_file_bytes` of a part."""

    def __init__(self, session: ImapSession, max_file_bytes: int) -> None:
        self._session = session
        self._max_file_bytes = max_file_bytes

    async def fetch_texts(self, planned: Sequence[Planned]) -> dict[int, dict[str, bytes]]:
        """Encoded bytes by UID and section of the texts to read."""
        return await self._fetch_alike(
            {
                entry.uid: {text.section: text.read_bytes for text in entry.plan.texts}
                for entry in planned
            }
        )

    async def fetch_files(
        self, drafts: Sequence[Draft], spools: ExitStack
    ) -> dict[int, dict[str, Content]]:
        """Decoded contents by UID and section of the files that the triage wants.

        Large ones are open files, which `spools` closes.
        """
        wanted = {
            draft.request.uid: [file for file in draft.files if file.wanted] for draft in drafts
        }
        heads = await self._fetch_alike(
            {
                uid: {file.section: SLICE_BYTES for file in files if file.size_bytes < SLICE_BYTES}
                for uid, files in wanted.items()
            }
        )
        contents = await self._session.compute(_decode_whole, wanted, heads)
        for uid, files in wanted.items():
            for file in files:
                if file.section not in contents[uid]:
                    contents[uid][file.section] = await self._fetch_large(uid, file, spools)
        return contents

    async def fetch_raw(self, uid: int) -> bytes | None:
        """The whole message, None when it is too large or cannot be had."""
        raw = bytearray()
        while len(raw) <= self._max_file_bytes:
            try:
                data = await self._session.fetch_slice(uid, "", len(raw), SLICE_BYTES)
            except FetchRefused:
                return None
            raw += data
            if len(data) < SLICE_BYTES:
                return bytes(raw) or None
        return None

    async def _fetch_alike(
        self, wanted: Mapping[int, Mapping[str, int]]
    ) -> dict[int, dict[str, bytes]]:
        """Encoded bytes by UID and section; messages that want the same sections share a FETCH."""
        alike: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for uid, sections in wanted.items():
            for chunk in _chunks(tuple(sections), SECTIONS_PER_FETCH):
                alike[chunk].append(uid)
        answers: dict[int, dict[str, bytes]] = {uid: {} for uid in wanted}
        for chunk, uids in alike.items():
            sizes = {section: max(wanted[uid][section] for uid in uids) for section in chunk}
            found = await self._session.fetch_sections(uids, sizes)
            if len(found) < len(uids):
                raise FetchRefused("FETCH gives nothing of the message's text or files")
            for uid, encoded in found.items():
                answers[uid].update(encoded)
        return answers

    async def _fetch_large(self, uid: int, file: PlannedFile, spools: ExitStack) -> Content:
        """Read a part slice by slice into a file; only its first slice if that is no document."""
        decoder = TransferDecoder(file.encoding)
        spool = spools.enter_context(TemporaryFile())  # noqa: SIM115
        offset = 0
        while True:
            data = await self._session.fetch_slice(uid, file.section, offset, SLICE_BYTES)
            decoded = await self._session.compute(decoder.feed, data)
            if offset == 0 and not worth_reading(file, decoded):
                return decoded
            spool.write(decoded)
            if spool.tell() > self._max_file_bytes:
                return spool  # enough to see that it is too large
            offset += len(data)
            if len(data) < SLICE_BYTES:
                spool.write(decoder.finish())
                return spool


def _decode_whole(
    wanted: Mapping[int, Sequence[PlannedFile]], heads: Mapping[int, Mapping[str, bytes]]
) -> dict[int, dict[str, Content]]:
    """By UID and section the files that came whole with their first slice."""
    contents: dict[int, dict[str, Content]] = {uid: {} for uid in wanted}
    for uid, files in wanted.items():
        for file in files:
            head = heads[uid].get(file.section)
            if head is not None and len(head) < SLICE_BYTES:
                contents[uid][file.section] = decode_transfer(head, file.encoding)
    return contents


def _chunks(items: tuple[T, ...], size: int) -> Iterator[tuple[T, ...]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
