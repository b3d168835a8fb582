"""Which parts of a message are its text, which its files, and what becomes of each file.

Pure decisions: `plan_parts` from the structure alone, `decide_sniffed` from the bytes. The name and
type that a sender gives only say what is worth reading; the bytes confirm it. Every part that is
not text is a file with a verdict, and every verdict but `extract` has its reason.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from service.mail import filetypes
from service.mail.filetypes import Declared
from service.mail.sniff import DOCUMENTS, Kind, Sniffer, is_markup
from service.mail.structure import MESSAGE_TYPES
from service.model import Part, Verdict

TEXT_MAX_PARTS = 100
TEXT_MAX_BYTES = 2 * 1024 * 1024
# Read sizes are powers of two from here on: a text that is a little longer than the server said is
# not cut, and none asks for no bytes at all, which FETCH does not know.
TEXT_READ_MIN_BYTES = 4096

Decision = tuple[Verdict, str | None]

_ENCRYPTED_PARENT = "multipart/encrypted"


@dataclass(frozen=True, slots=True)
class PlannedText:
    """A text part, and how many encoded bytes of it to read at most."""

    part: Part
    read_bytes: int

    @property
    def section(self) -> str:
        return self.part.section

    @property
    def is_cut(self) -> bool:
        return self.part.size_bytes > self.read_bytes


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file part. Without a verdict it is wanted: its bytes have to be read to decide."""

    part: Part
    declared: Declared
    verdict: Verdict | None = None
    reason: str | None = None
    max_bytes: int | None = None

    @property
    def wanted(self) -> bool:
        return self.verdict is None

    @property
    def section(self) -> str:
        return self.part.section

    @property
    def encoding(self) -> str:
        return self.part.encoding

    @property
    def size_bytes(self) -> int:
        """Encoded octets, as the structure has them."""
        return self.part.size_bytes

    @property
    def estimated_bytes(self) -> int:
        """Decoded octets, as long as nothing is read; of base64 in whole lines not one too many."""
        if self.encoding != "base64":
            return self.size_bytes
        line_ends = -(-self.size_bytes // 78) * 2  # after each 76 characters (RFC 2045 6.8)
        return max(0, (self.size_bytes - line_ends) * 3 // 4 - 2)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to read of a message: both lists in the order of the parts."""

    root: Part
    texts: tuple[PlannedText, ...]
    files: tuple[PlannedFile, ...]

    @property
    def read_bytes(self) -> int:
        """Encoded octets to read in all, by what the structure says."""
        texts = sum(min(text.read_bytes, text.part.size_bytes) for text in self.texts)
        return texts + sum(file.size_bytes for file in self.files if file.wanted)


def plan_parts(root: Part, *, max_file_bytes: int, inline_image_bytes: int) -> Plan:
    """Sort the parts of a message into text and files, from its structure alone."""
    leaves = list(_leaves(root))
    texts = tuple(_plan_texts(_choose_texts(leaves)))
    sections = {text.section for text in texts}
    files = []
    for part, parent in leaves:
        if part.section not in sections:
            file = PlannedFile(part, filetypes.declare(part), max_bytes=max_file_bytes)
            decision = _decide_unread(file, parent, max_file_bytes, inline_image_bytes)
            files.append(replace(file, verdict=decision[0], reason=decision[1]))
    return Plan(root, texts, tuple(files))


def refine(file: PlannedFile, shown_cids: Collection[str]) -> PlannedFile:
    """An image that the HTML shows is decoration, whatever its size; so is what has no type."""
    is_open = file.verdict in (None, Verdict.UNSUPPORTED, Verdict.TOO_LARGE)
    if not is_open or file.part.content_id not in shown_cids:
        return file
    if file.declared not in (Declared.IMAGE, Declared.UNKNOWN):
        return file
    return replace(file, verdict=Verdict.INLINE_IMAGE, reason="an image that the HTML shows")


def worth_reading(file: PlannedFile, first_slice: bytes) -> bool:
    """Whether a file can still become a document after its first decoded bytes."""
    sniffer = Sniffer()
    sniffer.feed(first_slice)
    return not sniffer.settled or decide_sniffed(file, sniffer)[0] is Verdict.EXTRACT


def decide_sniffed(file: PlannedFile, sniffer: Sniffer) -> Decision:
    """Verdict and reason on the decoded content that went through `sniffer`."""
    if file.verdict is not None:
        return file.verdict, file.reason
    if file.max_bytes is not None and sniffer.size_bytes > file.max_bytes:
        return Verdict.TOO_LARGE, f"more than the limit of {file.max_bytes} bytes"
    if sniffer.kind in DOCUMENTS or (sniffer.kind is Kind.TEXT and _takes_text(file, sniffer)):
        return Verdict.EXTRACT, None
    if sniffer.kind is Kind.EMPTY:
        return Verdict.DAMAGED, "the file is empty"
    if sniffer.kind is Kind.ENCRYPTED_OFFICE:
        return Verdict.ENCRYPTED, "an encrypted Office file"
    if file.declared is Declared.UNKNOWN:
        return Verdict.UNSUPPORTED, f"its bytes are {sniffer.description}, which is not read"
    reason = f"sent as {file.declared.value}, but its bytes are {sniffer.description}"
    return (Verdict.DAMAGED if sniffer.is_unknown else Verdict.UNSUPPORTED), reason


def _takes_text(file: PlannedFile, sniffer: Sniffer) -> bool:
    """CSV is text; and many an "Excel" export is, with tabs or semicolons."""
    if file.declared is Declared.SPREADSHEET:
        first_line = sniffer.head.partition(b"\n")[0]
        return not is_markup(sniffer.head) and any(mark in first_line for mark in b"\t;,")
    return file.declared is Declared.TABLE


def _leaves(root: Part) -> Iterator[tuple[Part, str]]:
    """Parts other than multiparts, with the type of the multipart or message they stand in."""
    stack = [(root, "")]
    while stack:
        part, parent = stack.pop()
        if not part.content_type.startswith("multipart/"):
            yield part, parent
        if _is_sealed(part):
            continue
        inherited = parent if parent == _ENCRYPTED_PARENT else part.content_type
        stack.extend((child, inherited) for child in reversed(part.children))


def _is_sealed(part: Part) -> bool:
    """A message with a transfer encoding of its own, which is forbidden: servers misread it."""
    return part.content_type in MESSAGE_TYPES and part.encoding in ("base64", "quoted-printable")


def _choose_texts(leaves: Sequence[tuple[Part, str]]) -> list[Part]:
    """The text parts; inline ones with a file name only where there is no other text."""
    parts = [
        part for part, parent in leaves if parent != _ENCRYPTED_PARENT and filetypes.is_text(part)
    ]
    unnamed = [part for part in parts if not (part.disposition and part.filename)]
    return unnamed or parts


def _plan_texts(parts: Sequence[Part]) -> Iterator[PlannedText]:
    left = TEXT_MAX_BYTES
    for part in parts[:TEXT_MAX_PARTS]:
        if left > 0:
            rounded = 1 << (part.size_bytes - 1).bit_length()
            yield PlannedText(part, min(max(rounded, TEXT_READ_MIN_BYTES), left))
            left -= part.size_bytes


def _decide_unread(
    file: PlannedFile, parent: str, max_file_bytes: int, inline_image_bytes: int
) -> tuple[Verdict | None, str | None]:
    """A verdict that needs no bytes, or none: the file is wanted."""
    part = file.part
    if parent == _ENCRYPTED_PARENT:
        return Verdict.ENCRYPTED, "a part of an encrypted message"
    if refusal := filetypes.refuse(part):
        return refusal
    if part.content_type in MESSAGE_TYPES:
        return Verdict.UNSUPPORTED, _reason_for_message(part)
    if file.declared is Declared.IMAGE:
        return _decide_image(file, parent, inline_image_bytes)
    if file.declared is Declared.TEXT:
        return Verdict.UNSUPPORTED, _reason_for_text(part)
    if file.declared is Declared.OTHER:
        return Verdict.UNSUPPORTED, f"{part.content_type} is not read"
    if file.estimated_bytes > max_file_bytes:
        return Verdict.TOO_LARGE, f"{file.estimated_bytes} bytes, the limit is {max_file_bytes}"
    return None, None


def _decide_image(file: PlannedFile, parent: str, inline_image_bytes: int) -> Decision:
    part = file.part
    stands_inline = part.disposition is None and parent == "multipart/related"
    is_inline = part.disposition == "inline" or part.content_id is not None or stands_inline
    if is_inline and file.estimated_bytes < inline_image_bytes:
        return Verdict.INLINE_IMAGE, f"an inline image of {file.estimated_bytes} bytes"
    return Verdict.UNSUPPORTED, f"an image ({part.content_type})"


def _reason_for_message(part: Part) -> str:
    if part.children and not _is_sealed(part):
        return "a message in the message; its text and files are taken separately"
    return "a message in the message, in a form that mail servers do not take apart"


def _reason_for_text(part: Part) -> str:
    if part.disposition:
        return f"a text file ({part.content_type})"
    return f"text beyond the first {TEXT_MAX_PARTS} parts or {TEXT_MAX_BYTES} bytes"
