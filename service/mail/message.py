"""One message after the other: planned, composed and finished, whatever is in it.

Pure. A fault that a hostile mail finds costs this mail only: it comes out as a `FailedMessage`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ParamSpec, TypeVar

from service.mail.compose import Content, Draft, compose, finish
from service.mail.structure import parse_raw_structure
from service.mail.text import decode_transfer
from service.mail.triage import Plan, plan_parts
from service.model import FailedMessage, Limits, NewRequest, Overview, Part, Ref

log = logging.getLogger(__name__)

Entry = TypeVar("Entry")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Planned:
    """A message after pass 1: what there is of it, and what to read."""

    overview: Overview
    plan: Plan

    @property
    def ref(self) -> Ref:
        return self.overview.ref


def runs(
    entries: Sequence[Entry], size_bytes: Callable[[Entry], int], max_bytes: int
) -> Iterator[list[Entry]]:
    """Runs of messages with that much to read together; a larger one is alone."""
    run: list[Entry] = []
    total = 0
    for entry in entries:
        size = size_bytes(entry)
        if run and total + max(size, 1) > max_bytes:
            yield run
            run, total = [], 0
        run.append(entry)
        total += size
    if run:
        yield run


def plan_message(overview: Overview | FailedMessage, limits: Limits) -> Planned | FailedMessage:
    """The triage of a message from its structure; one that failed before is left as it is."""
    if isinstance(overview, FailedMessage):
        return overview
    plan = attempt(overview.ref, _plan, overview.structure, limits)
    return plan if isinstance(plan, FailedMessage) else Planned(overview, plan)


def compose_all(
    planned: Sequence[Planned], texts: Mapping[Ref, Mapping[str, bytes]]
) -> list[Draft | FailedMessage]:
    """Drafts from the encoded texts by message and section."""
    return [attempt(entry.ref, compose_planned, entry, texts[entry.ref]) for entry in planned]


def compose_planned(planned: Planned, texts: Mapping[str, bytes]) -> Draft:
    """The draft of one message from its encoded texts by section."""
    overview = planned.overview
    return compose(overview.header, overview.ref, overview.received_at, planned.plan, texts)


def finish_all(
    drafts: Sequence[Draft], contents: Mapping[Ref, Mapping[str, Content]]
) -> list[NewRequest | FailedMessage]:
    """Requests from the decoded files by message and section."""
    return [
        attempt(draft.request.ref, finish, draft, contents[draft.request.ref]) for draft in drafts
    ]


def request_from_raw(raw: bytes, ref: Ref, received_at: datetime, limits: Limits) -> NewRequest:
    """The same request from a whole message as from a server. ValueError if it makes no sense."""
    structure, sections = parse_raw_structure(raw)
    plan = _plan(structure, limits)
    header = raw.replace(b"\r\n", b"\n").partition(b"\n\n")[0].replace(b"\n", b"\r\n") + b"\r\n\r\n"
    texts = {text.section: sections[text.section][: text.read_bytes] for text in plan.texts}
    draft = compose(header, ref, received_at, plan, texts)
    contents = {
        file.section: decode_transfer(sections[file.section], file.encoding)
        for file in draft.files
        if file.wanted
    }
    return finish(draft, contents)


def _plan(structure: Part, limits: Limits) -> Plan:
    return plan_parts(
        structure,
        max_file_bytes=limits.max_file_bytes,
        inline_image_bytes=limits.inline_image_bytes,
    )


def attempt(ref: Ref, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | FailedMessage:
    """What `make` gives; a fault of ours that a hostile mail meets costs that mail only."""
    try:
        return make(*args, **kwargs)
    except Exception as error:  # the traceback is for those who can mend it
        log.warning("message %s cannot be parsed", ref, exc_info=error)
        return FailedMessage(ref, "parse", repr(error))
