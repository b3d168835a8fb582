"""A message's MIME tree: from a server's BODYSTRUCTURE, or from the raw message.

Both give the same `Part` tree with the same section numbers (RFC 3501 sections 6.4.5 and 7.4.2).
What servers and senders get wrong in the details is put up with; only what is no structure at
all, or is deeper or wider than any honest mail, is a ValueError.
"""

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from service.mail.entities import Entity, read_entities, refuse_excess
from service.mail.header import clean
from service.mail.parameters import choose_filename, decode_parameters, split_parameters
from service.model import Part

MESSAGE_TYPES = frozenset({"message/rfc822", "message/global"})
# What servers give for a text part that says nothing (RFC 2045 section 5.2).
DEFAULT_CHARSET = "us-ascii"


def parse_bodystructure(response: object) -> Part:
    """The tree of a parsed BODYSTRUCTURE: nested sequences of bytes, int and None.

    The parts of a multipart stand one by one, or, as IMAPClient has it, in a list of their own.
    """
    return _StructureReader().read_message(response, "", depth=1)


class _StructureReader:
    """Reads one response and counts its parts."""

    def __init__(self) -> None:
        self._parts = 0

    def read_message(self, node: object, section: str, depth: int) -> Part:
        """The root of the message at `section`: as a single part it is number 1 in it."""
        if _is_sequence(node) and node and _is_sequence(node[0]):
            return self._read(node, section, depth)
        return self._read(node, _numbered(section, 1), depth)

    def _read(self, node: object, section: str, depth: int) -> Part:
        if not _is_sequence(node) or len(node) < 2:
            raise ValueError(f"this is no body structure but {type(node).__name__}")
        self._parts += 1
        refuse_excess(depth, self._parts)
        if _is_sequence(node[0]):
            return self._read_multipart(node, section, depth)
        return self._read_single(node, section, depth)

    def _read_multipart(self, node: Sequence[object], section: str, depth: int) -> Part:
        parts, rest = _split_multipart(node)
        disposition, _ = _disposition(_item(rest, 2))
        return Part(
            section=section,
            content_type=f"multipart/{_lower(_item(rest, 0)) or 'mixed'}",
            disposition=disposition,
            params=_parameters(_item(rest, 1)),
            children=tuple(
                self._read(part, _numbered(section, number), depth + 1)
                for number, part in enumerate(parts, 1)
            ),
        )

    def _read_single(self, node: Sequence[object], section: str, depth: int) -> Part:
        content_type = _content_type(_lower(node[0]), _lower(node[1]))
        disposition_at = 9 if _lower(node[0]) == "text" else 8
        children: tuple[Part, ...] = ()
        if content_type in MESSAGE_TYPES and _is_structure(_item(node, 8)):
            children = (self.read_message(node[8], section, depth + 1),)
            disposition_at = 11
        params = _parameters(_item(node, 2))
        disposition, disposition_params = _disposition(_item(node, disposition_at))
        return Part(
            section=section,
            content_type=content_type,
            encoding=_lower(_item(node, 5)) or "7bit",
            size_bytes=_size(_item(node, 6)),
            filename=choose_filename(disposition_params, params),
            disposition=disposition,
            content_id=_content_id(_octets(_item(node, 3))),
            params=params,
            children=children,
        )


def _numbered(section: str, number: int) -> str:
    return f"{section}.{number}" if section else str(number)


def _split_multipart(node: Sequence[object]) -> tuple[Sequence[object], Sequence[object]]:
    if isinstance(node[0], list):
        return node[0], node[1:]
    count = next((at for at, item in enumerate(node) if not _is_sequence(item)), len(node))
    return node[:count], node[count:]


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def _is_structure(value: object) -> bool:
    """Whether this is a body: a disposition, which some servers send in its place, is shorter."""
    return _is_sequence(value) and len(value) > 0 and (_is_sequence(value[0]) or len(value) >= 7)


def _item(node: Sequence[object], at: int) -> object:
    return node[at] if at < len(node) else None


def _octets(value: object) -> bytes:
    """A string of the response; NIL is empty, and digits without quotes came as a number."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "replace") if isinstance(value, int | str) else b""


def _lower(value: object) -> str:
    if value is None:
        return ""
    return clean(_octets(value).decode("latin-1")).strip().lower()


def _content_type(main: str, sub: str) -> str:
    """RFC 2045 section 5.2: what cannot be read is text/plain."""
    return f"{main}/{sub}" if main and sub else "text/plain"


def _size(value: object) -> int:
    if isinstance(value, int):
        return max(value, 0)
    digits = _octets(value)
    return int(digits) if digits.isdigit() and len(digits) < 16 else 0


def _parameters(value: object) -> dict[str, str]:
    if not _is_sequence(value):
        return {}
    octets = [_octets(item) for item in value]
    return decode_parameters(zip(octets[::2], octets[1::2], strict=False))


def _disposition(value: object) -> tuple[str | None, dict[str, str]]:
    """Name and parameters; some servers send the name alone."""
    if _is_sequence(value):
        return _lower(_item(value, 0)) or None, _parameters(_item(value, 1))
    return _lower(value) or None, {}


def _content_id(octets: bytes) -> str | None:
    return clean(octets.decode("latin-1")).strip().strip("<>") or None


def parse_raw_structure(raw: bytes) -> tuple[Part, Mapping[str, bytes]]:
    """The tree of a raw message, and the encoded octets of every part that is no multipart."""
    canonical = raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    contents: dict[str, bytes] = {}
    root = read_entities(canonical)
    return _entity_part(root, _message_section(root, ""), canonical, contents), contents


def _entity_part(entity: Entity, section: str, raw: bytes, contents: dict[str, bytes]) -> Part:
    if entity.content_type.startswith("multipart/"):
        return _multipart_part(entity, section, raw, contents)
    contents[section] = raw[entity.start : entity.end]
    params = _field_parameters(entity, "content-type")
    if entity.content_type.startswith("text/"):
        params.setdefault("charset", DEFAULT_CHARSET)
    return Part(
        section=section,
        content_type=entity.content_type,
        encoding=_first_word(entity, "content-transfer-encoding") or "7bit",
        size_bytes=entity.end - entity.start,
        filename=choose_filename(_field_parameters(entity, "content-disposition"), params),
        disposition=_first_word(entity, "content-disposition") or None,
        content_id=_content_id(entity.fields.get("content-id", b"")),
        params=params,
        children=tuple(
            _entity_part(child, _message_section(child, section), raw, contents)
            for child in entity.children
        ),
    )


def _multipart_part(entity: Entity, section: str, raw: bytes, contents: dict[str, bytes]) -> Part:
    # A multipart without parts is not allowed; servers show one empty text in it.
    children = entity.children or [Entity("text/plain", {}, 0)]
    return Part(
        section=section,
        content_type=entity.content_type,
        disposition=_first_word(entity, "content-disposition") or None,
        params=_field_parameters(entity, "content-type"),
        children=tuple(
            _entity_part(child, _numbered(section, number), raw, contents)
            for number, child in enumerate(children, 1)
        ),
    )


def _message_section(root: Entity, section: str) -> str:
    """The section of the root of the message at `section`: a single part is number 1 in it."""
    is_multipart = root.content_type.startswith("multipart/")
    return section if is_multipart else _numbered(section, 1)


def _field_parameters(entity: Entity, name: str) -> dict[str, str]:
    return decode_parameters(split_parameters(entity.fields.get(name, b"")))


def _first_word(entity: Entity, name: str) -> str:
    return _lower(entity.fields.get(name, b"").partition(b";")[0])
