"""MIME parameters as senders write them, and the file names in them.

Continuations and charsets (RFC 2231), encoded words in quotes (which RFC 2047 forbids and everyone
sends), percent garbage: each gives a best effort, and nothing is an error.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote_to_bytes

from service.mail.header import clean, decode_value
from service.mail.text import decode_charset

FIELD_MAX_BYTES = 64 * 1024
FILENAME_MAX_CHARS = 255
EXTENSION_MAX_CHARS = 16

_PARAMETER = re.compile(rb';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"?|([^;]*))', re.DOTALL)
_QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)
_PIECE = re.compile(r"(.+?)(?:\*(\d{1,4}))?(\*?)\Z")
_CHARSET_IN_VALUE = re.compile(r"([\w-]+)'[\w-]*'(.*%[0-9A-Fa-f]{2}.*)\Z")
_WINDOWS_FOLDER = re.compile(r"\A[A-Za-z]:[\\/](?:.*[\\/])?")
# Controls, and the marks that make a name read in another direction than it is stored.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]+")


def split_parameters(value: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The raw parameters of a Content-Type or Content-Disposition value."""
    for name, quoted, token in _PARAMETER.findall(value[:FIELD_MAX_BYTES]):
        yield name, _QUOTED_PAIR.sub(rb"\1", quoted) if quoted else token.strip()


def decode_parameters(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Decoded values by lower-cased name; an RFC 2231 value wins over a plain one."""
    decoded: dict[str, str] = {}
    pieces: dict[str, list[tuple[int, bool, bytes]]] = {}
    for key, value in pairs:
        name = key.decode("latin-1").lower()
        if "*" not in name:
            decoded.setdefault(name, decode_value(value))
        elif piece := _PIECE.match(name):
            number, extended = int(piece[2] or 0), bool(piece[3])
            pieces.setdefault(piece[1], []).append((number, extended, value))
    return decoded | {name: _joined(found) for name, found in pieces.items()}


def choose_filename(disposition: Mapping[str, str], content_type: Mapping[str, str]) -> str | None:
    """The name of a file: Content-Disposition's filename, else Content-Type's name."""
    for name in (disposition.get("filename"), content_type.get("name")):
        if name and (cleaned := _clean_name(name)):
            return cleaned
    return None


def _joined(pieces: list[tuple[int, bool, bytes]]) -> str:
    octets, charset = b"", ""
    for number, extended, value in sorted(pieces):
        if extended and number == 0 and value.count(b"'") >= 2:
            label, _, value = value.split(b"'", 2)
            charset = label.decode("latin-1")
        octets += unquote_to_bytes(value) if extended else value
    return clean(decode_charset(octets, charset)) if charset else decode_value(octets)


def _clean_name(name: str) -> str:
    if in_value := _CHARSET_IN_VALUE.match(name):
        name = decode_charset(unquote_to_bytes(in_value[2]), in_value[1])
    name = _WINDOWS_FOLDER.sub("", _INVISIBLE.sub("", clean(name)))
    name = name.replace("/", "_").replace("\\", "_").strip()
    if len(name) <= FILENAME_MAX_CHARS:
        return name
    _, dot, extension = name.rpartition(".")
    ending = dot + extension if dot and len(extension) <= EXTENSION_MAX_CHARS else ""
    return name[: FILENAME_MAX_CHARS - len(ending)] + ending
