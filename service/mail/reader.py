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
from service.mail.message import Planned
from service.mail.source import MailSource
from service.mail.text import TransferDecoder, decode_transfer
from service.mail.triage import PlannedFile, worth_reading
from service.model import Ref

SLICE_BYTES = 1024 * 1024
SECTIONS_PER_FETCH = 50

T = TypeVar("T")


class PartReader:
    """Reads parts of messages over one source; nothing beyond `max_file_bytes` of a part."""

    def __init__(self, source: MailSource, max_file_bytes: int) -> None:
        self._source = source
        self._max_file_bytes = max_file_bytes

    async def fetch_texts(self, planned: Sequence[Planned]) -> dict[Ref, dict[str, bytes]]:
        """Encoded bytes by message and section of the texts to read."""
        return await self._fetch_alike(
            {
                entry.ref: {text.section: text.read_bytes for text in entry.plan.texts}
                for entry in planned
            }
        )

    async def fetch_files(
        self, drafts: Sequence[Draft], spools: ExitStack
    ) -> dict[Ref, dict[str, Content]]:
        """Decoded contents by message and section of the files that the triage wants.

        Large ones are open files, which `spools` closes.
        """
        wanted = {
            draft.request.ref: [file for file in draft.files if file.wanted] for draft in drafts
        }
        heads = await self._fetch_alike(
            {
                ref: {file.section: SLICE_BYTES for file in files if file.size_bytes < SLICE_BYTES}
                for ref, files in wanted.items()
            }
        )
        contents = await self._source.compute(_decode_whole, wanted, heads)
        for ref, files in wanted.items():
            for file in files:
                if file.section not in contents[ref]:
                    contents[ref][file.section] = await self._fetch_large(ref, file, spools)
        return contents

    async def fetch_raw(self, ref: Ref) -> bytes | None:
        """The whole message, None when it is too large or cannot be had."""
        raw = bytearray()
        while len(raw) <= self._max_file_bytes:
            try:
                data = await self._source.fetch_slice(ref, "", len(raw), SLICE_BYTES)
            except FetchRefused:
                return None
            raw += data
            if len(data) < SLICE_BYTES:
                return bytes(raw) or None
        return None

    async def _fetch_alike(
        self, wanted: Mapping[Ref, Mapping[str, int]]
    ) -> dict[Ref, dict[str, bytes]]:
        """Encoded bytes by message and section; one fetch for those that want the same sections."""
        alike: defaultdict[tuple[str, ...], list[Ref]] = defaultdict(list)
        for ref, sections in wanted.items():
            for chunk in _chunks(tuple(sections), SECTIONS_PER_FETCH):
                alike[chunk].append(ref)
        answers: dict[Ref, dict[str, bytes]] = {ref: {} for ref in wanted}
        for chunk, refs in alike.items():
            sizes = {section: max(wanted[ref][section] for ref in refs) for section in chunk}
            found = await self._source.fetch_sections(refs, sizes)
            if len(found) < len(refs):
                raise FetchRefused("the server gives nothing of the message's text or files")
            for ref, encoded in found.items():
                answers[ref].update(encoded)
        return answers

    async def _fetch_large(self, ref: Ref, file: PlannedFile, spools: ExitStack) -> Content:
        """Read a part slice by slice into a file; only its first slice if that is no document."""
        decoder = TransferDecoder(file.encoding)
        spool = spools.enter_context(TemporaryFile())  # noqa: SIM115
        offset = 0
        while True:
            data = await self._source.fetch_slice(ref, file.section, offset, SLICE_BYTES)
            decoded = await self._source.compute(decoder.feed, data)
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
    wanted: Mapping[Ref, Sequence[PlannedFile]], heads: Mapping[Ref, Mapping[str, bytes]]
) -> dict[Ref, dict[str, Content]]:
    """By UID and section the files that came whole with their first slice."""
    contents: dict[Ref, dict[str, Content]] = {ref: {} for ref in wanted}
    for ref, files in wanted.items():
        for file in files:
            head = heads[ref].get(file.section)
            if head is not None and len(head) < SLICE_BYTES:
                contents[ref][file.section] = decode_transfer(head, file.encoding)
    return contents


def _chunks(items: tuple[T, ...], size: int) -> Iterator[tuple[T, ...]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
