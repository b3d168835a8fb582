"""The INBOX that pymap serves, with its answers put right where RFC 3501 says otherwise.

pymap 0.36 counts a part's header into its size, gives Content-Disposition as one string, numbers
the parts of a forwarded mail one level too deep, keeps the line break before a boundary in the
part, and drops the connection over a Date it cannot read. A mail whose structure cannot be told
is refused when it arrives, so that it never stands in the way of the others.
"""

import re
from collections.abc import Mapping, Sequence
from email.message import Message as Header
from email.parser import HeaderParser
from typing import Any
from urllib.parse import quote

from pymap.backend.dict.mailbox import LoadedMessage, MailboxData, MailboxSet, Message
from pymap.mime import MessageContent
from pymap.parsing.message import AppendMessage
from pymap.parsing.primitives import List, Nil, Number, String
from pymap.parsing.response.fetch import BodyStructure, EnvelopeStructure
from pymap.parsing.specials import FetchRequirement

_FOLD = re.compile(rb"\r?\n(?=[ \t])")
# A multipart must have a part (RFC 3501, body-type-mpart); Dovecot puts an empty text there, too.
_EMPTY_PART = b'("text" "plain" NIL NIL NIL "7bit" 0 0)'


class Inboxes(MailboxSet):
    """The folders of one user; only INBOX, where the mails arrive, is ours."""

    def __init__(self) -> None:
        super().__init__()
        self._inbox = Inbox(self._content_cache, self._thread_cache)


class Inbox(MailboxData):
    """Stores each mail as a `StoredMessage`."""

    async def append(self, append_msg: AppendMessage, *, recent: bool = False) -> Message:
        """Raises what answering FETCH would raise later; nothing is stored then."""
        content = parse_content(append_msg.literal)
        bytes(RepairedMessage.structure_of(content).extended)
        bytes(RepairedMessage.envelope_of(content))
        plain = await super().append(append_msg, recent=recent)
        message = StoredMessage(
            plain.uid,
            plain.internal_date,
            plain.permanent_flags,
            email_id=plain.email_id,
            thread_id=plain.thread_id,
            recent=recent,
            content=content,
        )
        # No await since the append: nobody has seen the plain one.
        self._messages[message.uid] = message
        return message


class StoredMessage(Message):
    """A message that is read through `RepairedMessage`."""

    async def load_content(self, requirement: FetchRequirement) -> "RepairedMessage":
        return RepairedMessage(self, requirement, self._content)


class RepairedMessage(LoadedMessage):
    """What FETCH and SEARCH see of one message."""

    def get_header(self, name: bytes) -> Sequence[str]:
        try:
            return super().get_header(name)
        except Exception:
            # email.policy.SMTP fails on some headers, Outlook's one-off Message-IDs among them.
            header = _parse_header(bytes(self.content.header))
            return [str(value) for value in header.get_all(name.decode("ascii"), [])]

    def get_body_structure(self) -> BodyStructure:
        return self.structure_of(self.content)

    def get_envelope_structure(self) -> EnvelopeStructure:
        return self.envelope_of(self.content)

    @classmethod
    def structure_of(cls, part: MessageContent) -> "PartStructure":
        if _is_message(part):
            inner = part.body.nested[0]
            return PartStructure(part, [cls.structure_of(inner)], cls.envelope_of(inner))
        return PartStructure(part, [cls.structure_of(child) for child in part.body.nested])

    @classmethod
    def envelope_of(cls, part: MessageContent) -> EnvelopeStructure:
        envelope = cls._get_envelope_structure(part)
        if envelope.date is not None and envelope.date.datetime is None:
            envelope.date = None
        return envelope

    def _get_subpart(self, section: Sequence[int] | None) -> MessageContent:
        """RFC 3501 section 6.4.5: parts of a message/rfc822 are numbered as its own children."""
        part = self.content
        for depth, number in enumerate(section or ()):
            if depth and _is_message(part):
                part = part.body.nested[0]
            if part.body.content_type.maintype == "multipart":
                part = part.body.nested[number - 1]
            elif number != 1:
                raise IndexError(number)
        return part


class PartStructure(BodyStructure):
    """BODY and BODYSTRUCTURE of a part (RFC 3501 section 7.4.2), its parameters as sent."""

    def __init__(
        self,
        part: MessageContent,
        children: Sequence["PartStructure"],
        envelope: EnvelopeStructure | None = None,
    ) -> None:
        kind = part.body.content_type
        super().__init__(kind.maintype, kind.subtype, kind.params, None, None, None)
        self._header = _parse_header(bytes(part.header))
        self._body = part.body
        self._children = children
        self._envelope = envelope

    @property
    def _value(self) -> List:
        return self._list(extended=False)

    @property
    def extended(self) -> List:
        return self._list(extended=True)

    def _list(self, *, extended: bool) -> List:
        tail = [self._disposition(), Nil(), self._string("content-location")] if extended else []
        params = self._params("content-type")
        if self.maintype == "multipart":
            children = [bytes(child._list(extended=extended)) for child in self._children]
            extension = [params, *tail] if extended else []
            parts = b"".join(children) or _EMPTY_PART
            return List([parts, String.build(self.subtype), *extension])
        fields = [
            String.build(self.maintype),
            String.build(self.subtype),
            params,
            self._string("content-id"),
            self._string("content-description"),
            String.build(self._header.get("content-transfer-encoding", "7bit").strip()),
            Number(len(self._body)),
            *self._kind_fields(extended=extended),
        ]
        return List([*fields, Nil(), *tail] if extended else fields)

    def _kind_fields(self, *, extended: bool) -> list[Any]:
        if self._envelope is not None:
            inner = self._children[0]._list(extended=extended)
            return [self._envelope, inner, self._line_count()]
        return [self._line_count()] if self.maintype == "text" else []

    def _line_count(self) -> Number:
        return Number(bytes(self._body).count(b"\n"))

    def _disposition(self) -> List | Nil:
        value = self._header.get("content-disposition")
        if value is None:
            return Nil()
        kind = value.partition(";")[0].strip()
        return List([String.build(kind), self._params("content-disposition")])

    def _params(self, name: str) -> List | Nil:
        params = [pair for pair in self._header.get_params([], header=name)[1:] if pair[0]]
        return List([item for pair in params for item in _parameter(*pair)]) if params else Nil()

    def _string(self, name: str) -> String | Nil:
        value = self._header.get(name)
        return Nil() if value is None else String.build(value.strip().encode("latin-1"))


def parse_content(raw: bytes) -> MessageContent:
    """pymap's view of a mail, corrected: see `_correct_lines`."""
    tree = MessageContent.parse(raw).json
    _correct_lines(tree, in_multipart=False)
    return MessageContent.from_json(raw, tree)


def _correct_lines(part: Mapping[str, Any], *, in_multipart: bool) -> None:
    """Give the line break before a boundary to the boundary (RFC 2046 section 5.1.1).

    A header or body of no lines gets an empty one: without, pymap takes the whole mail for it.
    """
    header, body = part["header"], part["body"]
    start = body["lines"][0][0] if body["lines"] else 0
    header["lines"] = header["lines"] or [(start, start, start)]
    header_end = header["lines"][-1][2]
    *lines, (start, end, after) = body["lines"] or [(header_end, header_end, header_end)]
    body["lines"] = [*lines, (start, end, end if in_multipart else after)]
    in_multipart = in_multipart or body["content_type"].lower().startswith("multipart/")
    for child in body["nested"]:
        _correct_lines(child, in_multipart=in_multipart)


def _is_message(part: MessageContent) -> bool:
    return part.body.content_type.content_type == "message/rfc822"


def _parse_header(raw: bytes) -> Header:
    # Latin-1 there and back keeps every byte, also of headers that are not ASCII.
    return HeaderParser().parsestr(_FOLD.sub(b"", raw).decode("latin-1"))


def _parameter(name: str, value: str | tuple[str | None, str | None, str]) -> list[String | Nil]:
    """Name and value; what RFC 2231 encodes is encoded again."""
    if isinstance(value, tuple):
        charset, language, text = value
        encoded = quote(text, safe="", encoding="latin-1")
        name, value = f"{name}*", f"{charset or ''}'{language or ''}'{encoded}"
    return [String.build(item.encode("latin-1")) for item in (name, value)]
