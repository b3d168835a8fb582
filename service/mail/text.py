"""From the octets of a part to text: transfer encodings and charsets.

Nothing here raises on what a stranger sent: damaged encodings give what can be saved, unknown
charsets are guessed, and latin-1, which decodes anything, comes last.
"""

import binascii
import codecs
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

import charset_normalizer

# Data glued from several base64 runs, each with its own padding, is real; more runs are an attack.
MAX_BASE64_RUNS = 100_000

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NOT_BASE64 = bytes(set(range(256)) - set(_BASE64))
_AFTER_BASE64 = re.compile(rb"[^A-Za-z0-9+/\s]")
_CUT_ESCAPE = re.compile(rb"=[0-9A-Fa-f\r]?\Z")


class _Decoder(Protocol):
    def feed(self, chunk: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class _Identity:
    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def finish(self) -> bytes:
        return b""


class _Base64:
    """Ignores what is not base64, supplies missing padding and goes on behind padding.

    Behind padding the first foreign character ends the data: it is the footer of a mailing list.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._padded = self._ended = False
        self._runs_left = MAX_BASE64_RUNS

    def feed(self, chunk: bytes) -> bytes:
        first, *glued = chunk.split(b"=", self._runs_left)
        decoded = [self._run(first)]
        for run in glued:
            decoded.append(self.finish())
            self._padded = True
            decoded.append(self._run(run))
        self._runs_left -= len(glued)
        return b"".join(decoded)

    def finish(self) -> bytes:
        rest, self._rest = self._rest, b""
        return b"" if len(rest) < 2 else binascii.a2b_base64(rest + b"==")

    def _run(self, run: bytes) -> bytes:
        if self._ended:
            return b""
        if self._padded and (foreign := _AFTER_BASE64.search(run)):
            run, self._ended = run[: foreign.start()], True
        run = self._rest + run.translate(None, _NOT_BASE64)
        whole = len(run) & ~3
        self._rest = run[whole:]
        return binascii.a2b_base64(run[:whole])


class _QuotedPrintable:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        text = self._rest + chunk
        cut = _CUT_ESCAPE.search(text, max(0, len(text) - 2))
        whole = cut.start() if cut else len(text)
        self._rest = text[whole:]
        return _decode_quoted(text[:whole])

    def finish(self) -> bytes:
        return _decode_quoted(self._rest)


def _decode_quoted(text: bytes) -> bytes:
    # After "=" CR the codec drops everything up to the next LF, even if it is lines away.
    return binascii.a2b_qp(text.replace(b"=\r\n", b"=\n").replace(b"=\r", b"=3D\r"))


class _Uuencode:
    def __init__(self) -> None:
        self._rest = b""
        self._begun = False

    def feed(self, chunk: bytes) -> bytes:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        return b"".join(map(self._line, whole))

    def finish(self) -> bytes:
        return self._line(self._rest)

    def _line(self, line: bytes) -> bytes:
        if self._begun:
            return _decode_uu_line(line.rstrip(b"\r"))
        self._begun = line.startswith(b"begin ")
        return b""


def _decode_uu_line(line: bytes) -> bytes:
    if not line or line.startswith((b"end", b"`")):
        return b""
    try:
        return binascii.a2b_uu(line)
    except binascii.Error:
        # Some encoders pad beyond the length that the first character gives.
        told = (((line[0] - 32) & 63) * 4 + 5) // 3
        try:
            return binascii.a2b_uu(line[:told])
        except binascii.Error:
            return b""


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "base64": _Base64,
    "quoted-printable": _QuotedPrintable,
    "x-uuencode": _Uuencode,
    "uuencode": _Uuencode,
    "x-uue": _Uuencode,
    "uue": _Uuencode,
}


class TransferDecoder:
    """Decodes one part that arrives in pieces: `feed` each of them, then `finish` once."""

    def __init__(self, encoding: str) -> None:
        self._decoder = _DECODERS.get(encoding, _Identity)()

    def feed(self, chunk: bytes) -> bytes:
        return self._decoder.feed(chunk)

    def finish(self) -> bytes:
        return self._decoder.finish()


def decode_transfer(data: bytes, encoding: str) -> bytes:
    """Undo a Content-Transfer-Encoding in lower case; an unknown one changes nothing."""
    if encoding not in _DECODERS:
        return data
    if encoding == "base64" and not data.partition(b"=")[2].strip(b"= \t\r\n"):
        with suppress(binascii.Error):  # the usual: one run, padded as it should be
            return binascii.a2b_base64(data)
    decoder = TransferDecoder(encoding)
    decoded = decoder.feed(data)
    rest = decoder.finish()
    return decoded + rest if rest else decoded


# Labels that Python does not know, and labels whose real content is a superset of what they say
# (the WHATWG Encoding Standard maps them the same way). An "x-" before a label is dropped.
_ALIASES = {
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    "iso-8859-6-e": "iso8859_6",
    "iso-8859-6-i": "iso8859_6",
    "iso-8859-8-e": "iso8859_8",
    "iso-8859-8-i": "iso8859_8",
    "iso-8859-9": "cp1254",
    "iso-8859-11": "cp874",
    "tis-620": "cp874",
    "windows-874": "cp874",
    "ks_c_5601": "cp949",
    "ks_c_5601-1987": "cp949",
    "euc-kr": "cp949",
    "shift_jis": "cp932",
    "shift-jis": "cp932",
    "sjis": "cp932",
    "windows-31j": "cp932",
    "iso-2022-jp": "iso2022_jp_ext",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "unicode-1-1-utf-7": "utf_7",
    "macintosh": "mac_roman",
    "mac-ce": "mac_latin2",
    "mac-centraleurroman": "mac_latin2",
    "mac-icelandic": "mac_iceland",
}
# Codecs that are no charsets: escapes that make surrogates, and decoders of quadratic cost.
_NO_CHARSETS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"}
# In these all octets are below 128, so that no other charset can prove them wrong.
_SEVEN_BIT = ("iso2022", "utf-7", "hz")

# The commoner first.
_GUESSES = [
    "cp1252", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1254", "cp1255", "cp1256", "cp874",
    "cp932", "euc_jp", "gb18030", "big5", "cp949", "utf_16",
]  # fmt: skip
_GUESS_FROM_BYTES = 4096
_GUESS_AT_LEAST_BYTES = 32
_LABEL = re.compile(r"(?:x-)?([\w.:-]{1,40})")
_ASCII = bytes(range(128))
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")


def decode_charset(data: bytes, charset: str | None) -> str:
    """Text in the declared charset if it fits, else UTF-8, else a guess, else latin-1.

    A declared charset that fits but for a few octets is kept, with U+FFFD in their places.
    """
    declared = _codec(charset) if charset else None
    for codec in (declared, "utf-8"):
        text = _decode(data, codec) if codec else None
        if text is not None:
            return text.removeprefix("\ufeff")
    foreign = len(data.translate(None, _ASCII))
    for codec in (declared, "utf-8"):
        text = data.decode(codec, "replace") if codec and codec != "ascii" else ""
        if text and text.count("\ufffd") * 20 <= foreign:
            return text.removeprefix("\ufeff")
    return _decode_guessed(data)


def _decode(data: bytes, codec: str) -> str | None:
    try:
        return data.decode(codec, "replace" if codec.startswith(_SEVEN_BIT) else "strict")
    except ValueError:
        return None


@lru_cache(maxsize=256)
def _codec(charset: str) -> str | None:
    found = _LABEL.search(charset.lower())
    label = found[1].replace("cp-", "cp") if found else ""
    try:
        codec = codecs.lookup(_ALIASES.get(label, label)).name
        b" ".decode(codec, "replace")
    except (LookupError, ValueError):
        return None
    return None if codec in _NO_CHARSETS else codec


def _decode_guessed(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    beyond = _BEYOND_ASCII.search(data)
    start = max(0, beyond.start() - 256) if beyond else 0
    sample = data[start : start + _GUESS_FROM_BYTES]
    if len(sample) < _GUESS_AT_LEAST_BYTES:
        return _decode(data, "cp1252") or data.decode("latin-1")
    # A sample that ends within a character would rule out the right charset: end it with a line.
    sample = sample[: sample.rfind(b"\n") + 1] or sample
    matches = charset_normalizer.from_bytes(sample, cp_isolation=_GUESSES)
    best = min(matches, key=_rank, default=None)
    return data.decode(best.encoding, "replace") if best else data.decode("latin-1")


def _rank(match: charset_normalizer.CharsetMatch) -> tuple[float, float, int]:
    """Of those that make about equal sense the commoner charset."""
    return match.chaos, -round(match.coherence, 1), _GUESSES.index(match.encoding)
