"""From what was read of a message to the request that becomes a row.

`compose` makes the text and the identity, before any file is read; `finish` adds the verdicts on
the files' bytes. Both are pure and take any input a server can give.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import BinaryIO

from service.mail.filetypes import Declared
from service.mail.header import Header, clean, parse_header
from service.mail.readable import calendar_to_text, html_cids, html_to_text
from service.mail.sniff import EXTENSIONS, Sniffer
from service.mail.text import decode_charset, decode_transfer
from service.mail.triage import Plan, PlannedFile, PlannedText, decide_sniffed, refine
from service.model import NewAttachment, NewRequest, Part, Ref, Verdict

SOURCE_REF_MAX_BYTES = 998
PIECE_BYTES = 1024 * 1024

Content = bytes | BinaryIO

PGP_MESSAGE = "-----BEGIN PGP MESSAGE-----"


@dataclass(frozen=True, slots=True)
class Draft:
    """A request that has no attachments yet; `files` are the plan's, refined by the texts."""

    request: NewRequest
    files: tuple[PlannedFile, ...]


def compose(
    header: bytes, ref: Ref, received_at: datetime, plan: Plan, texts: Mapping[str, bytes]
) -> Draft:
    """The draft of a message; `texts` has the encoded octets of each planned text by section."""
    fields = parse_header(header)
    planned = {text.section: text for text in plan.texts}
    octets = {text.section: _decode(text, texts) for text in plan.texts}
    strings = {
        text.section: decode_charset(octets[text.section], text.part.params.get("charset"))
        for text in plan.texts
    }
    encrypted = [text for text in plan.texts if strings[text.section].startswith(PGP_MESSAGE)]
    for text in encrypted:
        del strings[text.section]
    request = NewRequest(
        ref=ref,
        source_ref=_source_ref(fields, header, octets.values()),
        message_id=fields.message_id,
        content_fingerprint=_fingerprint(fields, octets.values(), plan.files),
        subject=fields.subject,
        sender=fields.sender,
        recipients=fields.recipients,
        sent_at=fields.sent_at,
        raw_date=fields.raw_date,
        received_at=received_at,
        body_text=clean(_joined(plan.root, planned, strings)),
        attachments=(),
    )
    return Draft(request, (*_refined(plan, strings), *map(_encrypted_text, encrypted)))


def finish(draft: Draft, contents: Mapping[str, Content]) -> NewRequest:
    """The request, with a row for every file; `contents` has the decoded wanted ones by section.

    A large content is an open binary file, read once here and rewound. Of a file that was not
    `worth_reading` the first slice is enough.
    """
    attachments = [_attachment(file, contents.get(file.section)) for file in draft.files]
    if not any(attachment.verdict is Verdict.EXTRACT for attachment in attachments):
        attachments.append(_body_attachment(draft.request.body_text))
    return replace(draft.request, attachments=tuple(attachments))


def _decode(text: PlannedText, texts: Mapping[str, bytes]) -> bytes:
    encoded = texts.get(text.section, b"")[: text.read_bytes]
    return decode_transfer(encoded, text.part.encoding)


def _source_ref(fields: Header, header: bytes, texts: Iterable[bytes]) -> str:
    """The Message-ID as sent if it fits into an index, else a hash that never changes."""
    if fields.message_id is None:
        return f"sha256:{_sha256([header.strip(), *texts])}"
    octets = fields.message_id.encode("latin-1")
    if len(octets) > SOURCE_REF_MAX_BYTES:
        return f"sha256:{hashlib.sha256(octets).hexdigest()}"
    return fields.message_id


def _fingerprint(fields: Header, texts: Iterable[bytes], files: Iterable[PlannedFile]) -> str:
    """Hash of what makes a mail that mail.

    Texts go in as octets before any charset or rendering, so that no update of a library or of
    our own rules makes a stored mail look new.
    """
    names = (f"{file.part.filename or ''}/{file.size_bytes}".encode() for file in files)
    header = (fields.raw_from, fields.raw_date_bytes, fields.raw_subject)
    return _sha256([*header, b"texts", *texts, b"files", *names])


def _sha256(values: Iterable[bytes]) -> str:
    """Each value with its length before it, so that none can pass for two."""
    return hashlib.sha256(b"".join(b"%d:%s" % (len(value), value) for value in values)).hexdigest()


def _render(text: PlannedText, string: str) -> str:
    rendered = string
    if text.part.content_type == "text/html":
        rendered = html_to_text(string)
    elif text.part.content_type == "text/calendar":
        rendered = calendar_to_text(string)
    rendered = rendered.replace("\r\n", "\n").replace("\r", "\n").strip()
    if text.is_cut:
        rendered += f"\n[text cut: {text.read_bytes} of {text.part.size_bytes} bytes]"
    return rendered


def _joined(part: Part, texts: Mapping[str, PlannedText], strings: Mapping[str, str]) -> str:
    """The text of a part and all in it, of alternatives the best one that is not blank."""
    if part.section in strings:
        return _render(texts[part.section], strings[part.section])
    if part.content_type == "multipart/alternative":
        ranked = sorted(part.children, key=_rank)
        return next(filter(None, (_joined(child, texts, strings) for child in ranked)), "")
    joined = (_joined(child, texts, strings) for child in part.children)
    return "\n\n".join(filter(None, joined))


def _rank(alternative: Part) -> int:
    """Plain text before HTML before a calendar before anything else."""
    types = set(_types(alternative))
    if "text/html" in types:
        return 1
    return 0 if "text/plain" in types else 2 if "text/calendar" in types else 3


def _types(part: Part) -> Iterator[str]:
    yield part.content_type
    for child in part.children:
        yield from _types(child)


def _refined(plan: Plan, strings: Mapping[str, str]) -> Iterator[PlannedFile]:
    htmls = [text.section for text in plan.texts if text.part.content_type == "text/html"]
    cids = {cid for section in htmls for cid in html_cids(strings.get(section, ""))}
    return (refine(file, cids) for file in plan.files)


def _encrypted_text(text: PlannedText) -> PlannedFile:
    return PlannedFile(text.part, Declared.TEXT, Verdict.ENCRYPTED, "PGP encryption")


def _attachment(file: PlannedFile, content: Content | None) -> NewAttachment:
    """Hash, exact size and content go with what is extracted, an estimate with the rest."""
    sniffer, sha256, size_bytes = _read(content) if file.wanted else (Sniffer(), "", 0)
    verdict, reason = decide_sniffed(file, sniffer)
    extract = verdict is Verdict.EXTRACT
    return NewAttachment(
        kind="file",
        part_id=file.section,
        filename=file.part.filename or (_made_up_name(file, sniffer) if extract else None),
        content_type=file.part.content_type,
        size_bytes=size_bytes if extract else file.estimated_bytes,
        verdict=verdict,
        verdict_reason=reason,
        sha256=sha256 if extract else None,
        content=content if extract else None,
    )


def _read(content: Content | None) -> tuple[Sniffer, str, int]:
    sniffer, digest, size_bytes = Sniffer(), hashlib.sha256(), 0
    for piece in _pieces(content):
        sniffer.feed(piece)
        digest.update(piece)
        size_bytes += len(piece)
    return sniffer, digest.hexdigest(), size_bytes


def _pieces(content: Content | None) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
    elif content is not None:
        content.seek(0)
        while piece := content.read(PIECE_BYTES):
            yield piece
        content.seek(0)


def _made_up_name(file: PlannedFile, sniffer: Sniffer) -> str:
    return f"attachment-{file.section}.{EXTENSIONS.get(sniffer.kind, 'csv')}"


def _body_attachment(body_text: str) -> NewAttachment:
    """The text as the document; it is stored once, with the request."""
    octets = body_text.encode()
    return NewAttachment(
        kind="body",
        part_id=None,
        filename=None,
        content_type="text/plain",
        size_bytes=len(octets),
        verdict=Verdict.EXTRACT if octets else Verdict.UNSUPPORTED,
        verdict_reason=None if octets else "the message has no text",
        sha256=hashlib.sha256(octets).hexdigest(),
    )
