"""The header block of a message: its fields, decoded for people and raw for the fingerprint.

`email.policy.default` shortens and breaks Message-IDs and crashes on real mails, so fields are
taken from the raw, unfolded block; the standard library still reads addresses and dates. Any
bytes give a `Header`: a field that makes no sense is None.
"""

import binascii
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import getaddresses, parsedate_to_datetime

from service.mail.text import decode_charset, decode_transfer

# Room for some 20,000 recipients; reading hostile addresses takes 4 s a MiB.
HEADER_MAX_BYTES = 1024 * 1024
EARLIEST_YEAR = 1970
LATEST_YEAR = 2200
MAX_UTC_OFFSET = timedelta(hours=15)

_NAMES = frozenset({b"message-id", b"subject", b"from", b"to", b"cc", b"bcc", b"date"})
_ENCODED_WORD = re.compile(rb"=\?([^?\s]+)\?([bBqQ])\?(.*?)\?=", re.DOTALL)
_SPECIALS = {ord(char): f"={ord(char):02X}" for char in '"(),.:;<>@[\\]'}
# What nearly all mailboxes look like; the standard library takes 15 times as long for them.
_SIMPLE_MAILBOX = re.compile(
    r'(?:"?([^"<>@,;:()\\\[\]]*)"? ?<([^\s"<>@,;:()\\\[\]]+@[\w.-]+)>'
    r'|([^\s"<>@,;:()\\\[\]]+@[\w.-]+))'
)
_BETWEEN_ADDRESSES = re.compile(r"[\s<>(),:;\"\\]+")
_LINE_BREAKS = re.compile(r"[\r\n\t]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Header:
    """What a request needs of a header. Strings hold neither NUL nor lone surrogates."""

    message_id: str | None
    subject: str | None
    sender: str | None
    recipients: tuple[Mapping[str, str], ...]
    sent_at: datetime | None
    raw_date: str | None
    raw_from: bytes
    raw_date_bytes: bytes
    raw_subject: bytes


def parse_header(raw: bytes) -> Header:
    """Read a header block; of a field that may stand once, the first that is not blank counts."""
    fields = parse_fields(raw[:HEADER_MAX_BYTES], _NAMES)
    first: dict[str, bytes] = {}
    for name, value in fields:
        first.setdefault(name, value)
    date = first.get("date", b"")
    return Header(
        message_id=clean(first.get("message-id", b"").decode("latin-1")) or None,
        subject=decode_value(first.get("subject", b"")) or None,
        sender=_sender(first.get("from", b"")),
        recipients=tuple(_recipients(fields)),
        sent_at=_parse_date(date),
        raw_date=clean(_plain(date)) or None,
        raw_from=first.get("from", b""),
        raw_date_bytes=date,
        raw_subject=first.get("subject", b""),
    )


def parse_fields(raw: bytes, names: Collection[bytes]) -> list[tuple[str, bytes]]:
    """The fields of these lower-case names that are not blank: name and unfolded, trimmed value."""
    fields = []
    text = raw.replace(b"\r\n", b"\n").replace(b"\n ", b" ").replace(b"\n\t", b"\t")
    for line in text.split(b"\n"):
        if not line:
            break
        name, _, value = line.partition(b":")
        name = name.rstrip().lower()
        if name in names and (value := value.strip()):
            fields.append((name.decode("ascii"), value))
    return fields


def decode_value(raw: bytes) -> str:
    """A value as one line of text; RFC 2047 words are decoded also inside quotes and words."""
    if raw.isascii() and b"=?" not in raw:
        text = raw.decode("ascii")
        if text.isprintable():
            return text.strip()
    else:
        text = "".join(_runs(raw, raw.rfind(b"?=") + 2))
    return clean(_LINE_BREAKS.sub(" ", text)).strip()


def clean(text: str) -> str:
    """The text as PostgreSQL can store it: no NUL, no lone surrogates."""
    if text.isascii():
        return text.replace("\0", "") if "\0" in text else text
    return _SURROGATE.sub("\ufffd", text.replace("\0", ""))


def _runs(raw: bytes, end: int) -> Iterator[str]:
    """Plain text and decoded words in turn; words of one charset that touch are one run.

    A character of several octets may be cut by the end of a word, so octets are joined first.
    Every "=?" before `end`, the last "?=", finds an end: the search stays linear.
    """
    at, charset, octets = 0, "", b""
    for word in _ENCODED_WORD.finditer(raw, 0, end):
        between = raw[at : word.start()]
        label = word[1].partition(b"*")[0].lower().decode("latin-1")
        if octets and (label != charset or between.strip()):
            yield decode_charset(octets, charset)
            octets = b""
        if at == 0 or between.strip():
            yield _plain(between)
        octets += _decode_word(word[2], word[3])
        at, charset = word.end(), label
    yield decode_charset(octets, charset)
    yield _plain(raw[at:])


def _decode_word(encoding: bytes, encoded: bytes) -> bytes:
    if encoding in b"bB":
        return decode_transfer(encoded, "base64")
    return binascii.a2b_qp(encoded, header=True)


def _plain(raw: bytes) -> str:
    """Octets beyond ASCII outside of words: UTF-8 by RFC 6532, else what old mailers wrote."""
    for codec in ("utf-8", "cp1252"):
        try:
            return raw.decode(codec)
        except UnicodeDecodeError:
            continue
    return raw.decode("latin-1")


def _sender(raw: bytes) -> str | None:
    for name, address in parse_addresses(raw):
        if "@" in address:
            return f"{name} <{address}>" if name else address
    return decode_value(raw) or None


def _recipients(fields: Iterable[tuple[str, bytes]]) -> Iterator[dict[str, str]]:
    for kind, raw in fields:
        if kind in ("to", "cc", "bcc"):
            for name, address in parse_addresses(raw):
                yield {"kind": kind, "name": name, "address": address}


def parse_addresses(raw: bytes) -> list[tuple[str, str]]:
    """(name, address) pairs; where the list makes no sense, whatever looks like an address."""
    if b"=?" in raw:
        # A comma inside an encoded word is not allowed, and common.
        end = raw.rfind(b"?=") + 2
        raw = _ENCODED_WORD.sub(_protect, raw[:end]) + raw[end:]
    text = raw.decode("latin-1")
    found = _simple_addresses(text) or _any_addresses(text)
    pairs = [(_decoded(name), _decoded(address)) for name, address in found if address]
    return pairs or [("", _decoded(word)) for word in _BETWEEN_ADDRESSES.split(text) if "@" in word]


def _simple_addresses(text: str) -> list[tuple[str, str]]:
    found = [_SIMPLE_MAILBOX.fullmatch(piece.strip()) for piece in text.split(",")]
    return [(one[1] or "", one[2] or one[3]) for one in found if one] if all(found) else []


def _any_addresses(text: str) -> list[tuple[str, str]]:
    try:
        return getaddresses([text])
    except (ValueError, IndexError, RecursionError):
        return []


def _protect(word: re.Match[bytes]) -> bytes:
    if word[2] in b"bB":
        return word[0]
    encoded = word[3].decode("latin-1").translate(_SPECIALS).encode("latin-1")
    return b"=?%s?q?%s?=" % (word[1], encoded)


def _decoded(latin1: str) -> str:
    return decode_value(latin1.encode("latin-1"))


def _parse_date(raw: bytes) -> datetime | None:
    """The Date as an aware time; None if it cannot be, or says what nobody's clock says."""
    try:
        date = parsedate_to_datetime(raw.decode("latin-1"))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if not EARLIEST_YEAR <= date.year <= LATEST_YEAR:
        return None
    if date.tzinfo is None:
        return date.replace(tzinfo=UTC)
    offset = date.utcoffset()
    return date if offset is not None and abs(offset) <= MAX_UTC_OFFSET else None
