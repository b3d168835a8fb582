"""Whether a message is what a query asks for: the check that counts, whatever SEARCH found. Pure.

Texts are compared as people read them: decoded, in composed form, whatever the case.
"""

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime

from service.mail.header import decode_value, parse_addresses, parse_fields
from service.model import Overview, Query, Ref

FILTERS = ("subject", "from", "to", "since")
_NAMES = frozenset({b"subject", b"from", b"to"})
HEADER_MAX_BYTES = 128 * 1024
_TABS = re.compile(r"\t+")  # decoded fields have none


@dataclass(frozen=True, slots=True)
class Envelope:
    """What queries look at, ready to be compared: the fields' texts, folded."""

    ref: Ref
    subject: str
    sender: str
    recipient: str
    received_at: datetime


def read_envelope(overview: Overview) -> Envelope:
    """Of a field that stands several times each one counts."""
    texts = dict.fromkeys(("subject", "from", "to"), "")
    for name, raw in parse_fields(overview.header[:HEADER_MAX_BYTES], _NAMES):
        texts[name] += "\n" + fold(decode_value(raw))
        if name != "subject":
            pairs = (f"\n{who} <{where}>" for who, where in parse_addresses(raw))
            texts[name] += fold("".join(pairs))
    return Envelope(
        overview.ref, texts["subject"], texts["from"], texts["to"], overview.received_at
    )


def fold(text: str) -> str:
    """The text for a comparison whatever the case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


class Matcher:
    """A query, ready to be compared."""

    __slots__ = ("_since", "_texts")  # there is one for each client that waits

    def __init__(self, query: Query) -> None:
        self._since = query.since
        texts = (query.subject, query.sender, query.recipient)
        self._texts = tuple(fold(_TABS.sub(" ", text or "")) for text in texts)

    def rejections(self, envelope: Envelope) -> tuple[str, ...]:
        """The names of the filters that turn the message away; none: it matches."""
        values = (envelope.subject, envelope.sender, envelope.recipient)
        passed = [text in value for text, value in zip(self._texts, values, strict=True)]
        passed.append(self._since is None or envelope.received_at >= self._since)
        return tuple(name for name, ok in zip(FILTERS, passed, strict=True) if not ok)
