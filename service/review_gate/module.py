"""What all functions of a file share: its scopes and imports, what was found, what is to be read.

A file that leads back and forth in too many ways raises TooTangledError.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

from service.review_gate.clients import Imports
from service.review_gate.findings import Finding, Step
from service.review_gate.held import Held
from service.review_gate.scopes import Function, Scopes
from service.review_gate.sources import Source
from service.review_gate.transactions import Transactions

Rule = Literal["foreign-await", "blocking-call"]

# Of calls followed and awaits looked at in one file; what people write needs some hundred.
MAX_STEPS = 30_000


class TooTangledError(Exception):
    """Its functions or variables lead to each other in more ways than there is time for."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One function, or the module's own statements, to be read with what is held there.

    `way` and `lines` led into it; `is_awaited`: its caller awaits what it returns.
    """

    function: Function | None
    held: Held
    way: tuple[Step, ...] = ()
    lines: frozenset[int] = frozenset()
    is_awaited: bool = False


class Module:
    """A file; `waiting`: what is to be read of it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.scopes = Scopes(source.tree)
        self.imports = Imports(source.tree)
        self.transactions = Transactions(self.scopes)
        self.transaction_lines: set[int] = set()
        self.findings: dict[tuple[int, int, int, Rule], Finding] = {}
        self.waiting: deque[Reading] = deque()
        self._started: set[tuple[Function, Held, bool]] = set()
        self._steps = 0

    def step(self) -> None:
        """Counts what may be repeated for each way that leads to it.

        Raises TooTangledError after MAX_STEPS.
        """
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooTangledError

    def start(self, reading: Reading) -> None:
        """Have a function read, once for each transaction and each way to hold its connection."""
        if reading.function is not None:
            key = (reading.function, reading.held, reading.is_awaited)
            if key in self._started:
                return
            self._started.add(key)
        self.waiting.append(reading)
