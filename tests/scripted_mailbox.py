"""A folder of messages and what a correct IMAP server says of it (RFC 3501): pure, no socket.

Knows what a two-pass client asks: UID SEARCH by UIDs and SINCE, UID FETCH with sections and
partial ranges. Any other search criterion matches everything, any other item is a BAD.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import Message as ParsedMessage

_FETCH_ITEM = re.compile(
    r"BODY(?:\.PEEK)?\[(?P<section>[^]]*)](?:<(?P<start>\d+)\.(?P<count>\d+)>)?|[A-Z0-9.]+"
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_INTERNALDATE_FORMAT = "%d-%b-%Y %H:%M:%S %z"


@dataclass(frozen=True)
class Message:
    """A mail with CRLF line ends. `structure` replaces the BODYSTRUCTURE computed from `raw`."""

    uid: int
    raw: bytes
    internaldate: datetime = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    structure: str | None = None


def search_reply(messages: Sequence[Message], args: str) -> bytes:
    uids = " ".join(str(message.uid) for message in messages if _matches(message, messages, args))
    return f"* SEARCH {uids}".rstrip().encode() + b"\r\n{tag} OK SEARCH done\r\n"


def _matches(message: Message, messages: Sequence[Message], args: str) -> bool:
    uid_set = re.search(r"\bUID ([\d,:*]+)", _QUOTED.sub("", args))
    if uid_set is not None and message.uid not in _parse_uid_set(uid_set[1], messages):
        return False
    since = re.search(r"\bSINCE \"?([\w-]+)", args)
    if since is None:
        return True
    # The date in the zone of the INTERNALDATE, its time disregarded.
    return message.internaldate.date() >= datetime.strptime(since[1], "%d-%b-%Y").date()


def fetch_reply(messages: Sequence[Message], args: str) -> bytes:
    uid_set, items = args.split(" ", 1)
    wanted = _parse_uid_set(uid_set, messages)
    reply = b""
    for number, message in enumerate(messages, 1):
        if message.uid in wanted:
            values = [_fetch_item(message, match) for match in _FETCH_ITEM.finditer(items)]
            joined = b" ".join([b"UID %d" % message.uid, *filter(None, values)])
            reply += b"* %d FETCH (%b)\r\n" % (number, joined)
    return reply + b"{tag} OK FETCH done\r\n"


def _parse_uid_set(text: str, messages: Sequence[Message]) -> set[int]:
    """The UIDs of `messages` in a set such as `1:4,9,12:*`; `99:*` holds the last one always."""
    last = max((message.uid for message in messages), default=0)
    found: set[int] = set()
    for span in text.split(","):
        ends = [last if end == "*" else int(end) for end in span.split(":")]
        found |= {m.uid for m in messages if min(ends) <= m.uid <= max(ends)}
    return found


def _fetch_item(message: Message, item: re.Match[str]) -> bytes:
    section = item["section"]
    if section is None:
        return _fetch_attribute(message, item[0])
    name, content = f"BODY[{section}]", section_of(message.raw, section)
    if content is None:
        return f"{name} NIL".encode()
    if item["start"] is not None:
        name += f"<{item['start']}>"
        content = content[int(item["start"]) :][: int(item["count"])]
    return f"{name} {{{len(content)}}}\r\n".encode() + content


def _fetch_attribute(message: Message, name: str) -> bytes:
    match name:
        case "UID":
            return b""
        case "FLAGS":
            return b"FLAGS ()"
        case "RFC822.SIZE":
            return b"RFC822.SIZE %d" % len(message.raw)
        case "INTERNALDATE":
            return f'INTERNALDATE "{message.internaldate:{_INTERNALDATE_FORMAT}}"'.encode()
        case "BODYSTRUCTURE":
            structure = message.structure or body_structure(message.raw)
            return f"BODYSTRUCTURE {structure}".encode()
    raise ValueError(f"this server does not know the FETCH item {name}")


def section_of(raw: bytes, section: str) -> bytes | None:
    """What `""`, `HEADER`, `TEXT`, `2`, `2.1`, `2.HEADER` or `2.MIME` names; None if nothing."""
    if not section:
        return raw
    entity, parts = raw, section.split(".")
    while parts and parts[0].isdecimal():
        children, number = _children(entity), int(parts.pop(0))
        if number > len(children):
            return None
        entity = children[number - 1]
    header, body = _split(entity)
    match parts:
        case ["MIME"]:
            return header
        case ["HEADER"]:
            return header if section == "HEADER" else _split(body)[0]
        case ["TEXT"]:
            return body if section == "TEXT" else _split(body)[1]
    return body


def _split(entity: bytes) -> tuple[bytes, bytes]:
    """The header with its empty line, and the body."""
    if entity.startswith(b"\r\n"):
        return entity[:2], entity[2:]
    header, empty_line, body = entity.partition(b"\r\n\r\n")
    return header + empty_line, body


def _children(entity: bytes) -> list[bytes]:
    """The parts of a multipart, also of one inside a message/rfc822; of a leaf, itself."""
    header, body = _split(entity)
    parsed = message_from_bytes(header)
    if parsed.get_content_type() == "message/rfc822":
        return _children(body)
    boundary = parsed.get_boundary()
    if boundary is None:
        return [entity]
    delimiter = rb"(?:\A|\r\n)--" + re.escape(boundary.encode())
    opened = re.split(delimiter + rb"--", body)[0]
    return re.split(delimiter + rb"[ \t]*(?:\r\n|\Z)", opened)[1:]


def body_structure(entity: bytes) -> str:
    """The BODYSTRUCTURE of an entity without message/rfc822 inside."""
    header, body = _split(entity)
    parsed = message_from_bytes(header)
    kind, subtype = parsed.get_content_type().split("/")
    if kind == "multipart":
        children = "".join(body_structure(child) for child in _children(entity))
        return f"({children} {_quoted(subtype)} {_parameters(parsed, 'content-type')} NIL NIL NIL)"
    if kind == "message":
        raise ValueError("give the structure of a mail with another one inside")
    fields = [
        _quoted(kind),
        _quoted(subtype),
        _parameters(parsed, "content-type"),
        _quoted(parsed["content-id"]),
        "NIL",
        _quoted(parsed.get("content-transfer-encoding", "7bit")),
        str(len(body)),
        *([str(body.count(b"\r\n"))] if kind == "text" else []),
        "NIL",
        _disposition(parsed),
        "NIL NIL",
    ]
    return f"({' '.join(fields)})"


def _disposition(parsed: ParsedMessage) -> str:
    kind = parsed.get_content_disposition()
    if kind is None:
        return "NIL"
    return f"({_quoted(kind)} {_parameters(parsed, 'content-disposition')})"


def _parameters(parsed: ParsedMessage, header: str) -> str:
    """The header's parameters; those encoded by RFC 2231 are left out."""
    pairs = parsed.get_params([], header)[1:]
    texts = [_quoted(text) for pair in pairs if isinstance(pair[1], str) for text in pair]
    if header == "content-type" and parsed.get_content_maintype() == "text" and not texts:
        return '("charset" "us-ascii")'
    return f"({' '.join(texts)})" if texts else "NIL"


def _quoted(text: str | None) -> str:
    if text is None:
        return "NIL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
