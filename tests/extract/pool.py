"""Readers with small limits, and what the tests ask of them and of their processes."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from service.errors import ReadFailed
from service.extract.readers import Readers
from service.model import ReadLimits
from tests.extract.samples import MEGABYTE

LIMITS = ReadLimits(memory_bytes=256 * MEGABYTE, wall_seconds=5, output_bytes=2 * MEGABYTE)
CODES = frozenset({
    "empty", "password_required", "damaged", "unsupported", "too_large", "no_text", "memory_limit",
    "time_limit", "reader_crashed",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that gave nothing, and why."""

    code: str
    sentence: str


async def read(readers: Readers, content: bytes) -> dict[str, Any]:
    """The result."""
    return dict(json.loads(await readers.read(content)))


async def outcome(readers: Readers, content: bytes) -> dict[str, Any] | Refused:
    """The result, or why there is none."""
    try:
        return await read(readers, content)
    except ReadFailed as failure:
        return Refused(failure.code, str(failure))


async def refusal(readers: Readers, content: bytes) -> Refused:
    """Why the file gives nothing."""
    found = await outcome(readers, content)
    assert isinstance(found, Refused), found
    return found


def reading_processes() -> Sequence[psutil.Process]:
    """The children of this process that read files, zombies too."""
    children = psutil.Process(os.getpid()).children()
    return [
        child
        for child in children
        if child.status() == psutil.STATUS_ZOMBIE or "service.extract" in child.cmdline()
    ]
