"""A message as clients get it, from what pass 1 and the texts of pass 2 gave. Pure.

The same plan and the same rendering as the intake's, so that both show the same text; files are
named, never read.
"""

from collections.abc import Mapping
from itertools import starmap

from service.mail.codes import find_codes
from service.mail.header import HEADER_MAX_BYTES, clean, parse_addresses, parse_fields
from service.mail.links import find_links
from service.mail.message import Planned, compose_planned
from service.mail.readable import html_to_text
from service.mail.text import decode_charset, decode_transfer
from service.mail.triage import Plan, PlannedFile
from service.model import Address, Addresses, Enclosure, Message, NewRequest, Verdict

_NAMES = frozenset({b"from", b"to", b"cc", b"bcc", b"reply-to"})


def build_message(planned: Planned, texts: Mapping[str, bytes]) -> Message:
    """The message; `texts` has the encoded octets of each planned text by section."""
    overview, plan = planned.overview, planned.plan
    draft = compose_planned(planned, texts)
    request = draft.request
    html = _html(plan, texts)
    return Message(
        email_id=overview.ref,
        message_id=request.message_id,
        datetime=overview.received_at,
        sent_at=request.sent_at,
        subject=request.subject,
        addresses=_addresses(overview.header),
        message=request.body_text,
        html=html,
        links=find_links(request.body_text, html),
        codes=_codes(request, plan, html),
        attachments=tuple(_enclosure(file) for file in draft.files),
        size_bytes=overview.size_bytes,
    )


def _codes(request: NewRequest, plan: Plan, html: str | None) -> tuple[str, ...]:
    """From the HTML where a plain text says nothing but that there is HTML."""
    found = find_codes(request.subject or "", request.body_text)
    has_plain = any(text.part.content_type == "text/plain" for text in plan.texts)
    return find_codes("", html_to_text(html)) if html and has_plain and not found else found


def _html(plan: Plan, texts: Mapping[str, bytes]) -> str | None:
    """The HTML texts, one behind the other, as sent."""
    found = []
    for text in plan.texts:
        if text.part.content_type == "text/html":
            octets = decode_transfer(texts.get(text.section, b""), text.part.encoding)
            found.append(clean(decode_charset(octets, text.part.params.get("charset"))))
    return "\n".join(found) if found else None


def _addresses(header: bytes) -> Addresses:
    found: dict[str, list[Address]] = {}
    for name, raw in parse_fields(header[:HEADER_MAX_BYTES], _NAMES):
        found.setdefault(name, []).extend(starmap(Address, parse_addresses(raw)))
    return Addresses(
        from_=tuple(found.get("from", ())),
        to=tuple(found.get("to", ())),
        cc=tuple(found.get("cc", ())),
        bcc=tuple(found.get("bcc", ())),
        reply_to=tuple(found.get("reply-to", ())),
    )


def _enclosure(file: PlannedFile) -> Enclosure:
    """Inline is what the message shows in its text: by disposition, or by what the HTML says."""
    is_shown = file.verdict is Verdict.INLINE_IMAGE
    return Enclosure(
        part_id=file.section,
        filename=file.part.filename,
        content_type=file.part.content_type,
        size_bytes=file.estimated_bytes,
        inline=file.part.disposition == "inline" or is_shown,
    )
