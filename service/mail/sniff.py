"""What a file is by its bytes.

Containers are judged by the names in them, found by a byte search: nothing from a stranger is
opened in this process. A whole file or its first piece goes through the same `Sniffer`; `settled`
says whether more of it could still change the answer.
"""

import re
from enum import StrEnum

import puremagic

HEAD_BYTES = 4096
PDF_WITHIN_BYTES = 1024
# puremagic's confidence in three bytes that match, as JPEG's do.
LIKELY = 0.3

_OVERLAP_BYTES = 256
_DIRECTORY_ENTRY_BYTES = 128


class Kind(StrEnum):
    """Kinds that matter to the triage, in words for people."""

    EMPTY = "empty"
    PDF = "PDF"
    XLSX = "an Excel workbook"
    XLSB = "a binary Excel workbook"
    XLS = "an old Excel workbook"
    ODS = "an OpenDocument spreadsheet"
    ENCRYPTED_OFFICE = "an encrypted Office file"
    OFFICE = "another kind of Office file"
    OOXML = "an Office file without a workbook"
    OLE = "an OLE file without a workbook"
    ARCHIVE = "a ZIP archive"
    TEXT = "text"
    OTHER = "binary data"


EXTENSIONS = {
    Kind.PDF: "pdf",
    Kind.XLSX: "xlsx",
    Kind.XLSB: "xlsb",
    Kind.XLS: "xls",
    Kind.ODS: "ods",
}
DOCUMENTS = frozenset(EXTENSIONS)
# As long as only these were seen, a workbook may follow.
_OPEN = frozenset({Kind.OOXML, Kind.OLE})

_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# A local file header (APPNOTE.TXT 4.3.7) has the name after 30 bytes, a central one after 46. An
# archive that holds a workbook shows the inner names as well, but does not begin with such a name.
_BEGINS_AS_OOXML = re.compile(
    rb"PK\x03\x04.{26}(?:\[content_types\]|\[trash\]|_rels|_xmlsignatures|docprops|docmetadata"
    rb"|customxml|customui|xl|word|ppt|visio)[./\\]",
    re.DOTALL | re.IGNORECASE,
)
_BEGINS_AS_ODS = re.compile(
    rb"PK\x03\x04.{26}mimetype.{0,64}application/vnd\.oasis\.opendocument\.spreadsheet", re.DOTALL
)
_OOXML_NAME = re.compile(
    rb"PK(?:\x03\x04.{26}|\x01\x02.{42})"
    rb"(xl[/\\]workbook\d*\.xml|xl[/\\]workbook\d*\.bin|word[/\\]|ppt[/\\]|visio[/\\])",
    re.DOTALL | re.IGNORECASE,
)
_OLE_NAMES = {
    name.encode("utf-16-le"): kind
    for name, kind in {
        "Workbook\0": Kind.XLS,
        "Book\0": Kind.XLS,
        "EncryptedPackage\0": Kind.ENCRYPTED_OFFICE,
        "WordDocument\0": Kind.OFFICE,
        "PowerPoint Document\0": Kind.OFFICE,
        "VisioDocument\0": Kind.OFFICE,
        "__nameid_version1.0\0": Kind.OFFICE,
        "__properties_version1.0\0": Kind.OFFICE,
    }.items()
}
_OLE_NAME = re.compile(b"|".join(map(re.escape, _OLE_NAMES)))
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x19\x1c-\x1f\x7f]")
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


class Sniffer:
    """Takes the pieces of a file in turn; `kind` is what they amount to so far."""

    def __init__(self) -> None:
        self.kind = Kind.EMPTY
        self.head = b""
        self._recent = b""
        self.size_bytes = 0

    @property
    def settled(self) -> bool:
        """Whether the rest of the file cannot change `kind`."""
        return self.kind not in _OPEN

    @property
    def description(self) -> str:
        """What the file is, in words for a reason."""
        return _media_type(self.head) if self.kind is Kind.OTHER else self.kind.value

    @property
    def is_unknown(self) -> bool:
        """Whether the bytes are no whole file of any kind that can be named."""
        return self.description == Kind.OTHER or self.kind in _OPEN

    def feed(self, piece: bytes) -> None:
        if len(self.head) < HEAD_BYTES and piece:
            self.head += piece[: HEAD_BYTES - len(self.head)]
            self.kind = _kind_by_head(self.head)
        if not self.settled:
            window = self._recent + piece
            start = self.size_bytes - len(self._recent)
            self.kind = _kind_by_names(self.kind, window, start)
            self._recent = window[-_OVERLAP_BYTES:]
        self.size_bytes += len(piece)


def sniff(content: bytes) -> Kind:
    """The kind of a whole file."""
    sniffer = Sniffer()
    sniffer.feed(content)
    return sniffer.kind


def is_markup(head: bytes) -> bool:
    """Whether a text is HTML or XML."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def _kind_by_head(head: bytes) -> Kind:
    if head.startswith(_OLE):
        return Kind.OLE
    if _BEGINS_AS_ODS.match(head):
        return Kind.ODS
    if head.startswith(b"PK\x03\x04"):
        return Kind.OOXML if _BEGINS_AS_OOXML.match(head) else Kind.ARCHIVE
    if b"%PDF-" in head[:PDF_WITHIN_BYTES]:
        return Kind.PDF
    return Kind.TEXT if _is_text(head) else Kind.OTHER


def _kind_by_names(kind: Kind, window: bytes, start: int) -> Kind:
    """The first name decides: a file's own main part stands before what is embedded in it."""
    if kind is Kind.OLE:
        for name in _OLE_NAME.finditer(window):
            if (start + name.start()) % _DIRECTORY_ENTRY_BYTES == 0:
                return _OLE_NAMES[name[0]]
    elif found := _OOXML_NAME.search(window):
        part = found[1].lower()
        if not part.startswith(b"xl"):
            return Kind.OFFICE
        return Kind.XLSX if part.endswith(b"xml") else Kind.XLSB
    return kind


def _is_text(head: bytes) -> bool:
    """Text in any charset; a few controls are put up with, as in a real CSV with a NUL in it."""
    if head.startswith(_BYTE_ORDER_MARKS):
        return True
    letters = head
    if any(half.count(0) * 10 > len(half) * 7 for half in (head[0::2], head[1::2])):
        letters = head.replace(b"\0", b"")  # UTF-16 of a script whose upper octets are 0
    controls = len(_CONTROLS.findall(letters))
    return len(letters) * 4 > len(head) and controls <= max(1, len(letters) // 20)


def _media_type(head: bytes) -> str:
    try:
        matches = puremagic.magic_string(head)
    except puremagic.PureError:
        matches = []
    likely = [str(match.mime_type) for match in matches[:1] if match.confidence >= LIKELY]
    return "".join(likely) or Kind.OTHER.value
