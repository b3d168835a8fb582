"""What the gate has to say, as data."""

from dataclasses import dataclass
from typing import Literal

# error: fails the gate; review: a person has to look; passed: an error that a comment lets pass;
# unused: such a comment that lets nothing pass.
Kind = Literal["error", "review", "passed", "unused"]


@dataclass(frozen=True, slots=True)
class Step:
    """One call on the way from the transaction into a function of the same module."""

    function: str
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in a file; lines and columns count from 1. `lines`: where a comment excuses it."""

    kind: Kind
    rule: str
    path: str
    line: int
    column: int
    message: str
    transaction_line: int | None = None
    way: tuple[Step, ...] = ()
    reason: str | None = None
    lines: frozenset[int] = frozenset()
