"""One measured figure beside its target, and the table of all of them."""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over `values`; `at_least` or `at_most` is the target where there is one."""

    part: str
    what: str
    unit: str
    values: Sequence[float]
    at_least: float | None = None
    at_most: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"< {self.at_most:g}" if self.at_most is not None else ""

    @property
    def verdict(self) -> str:
        if self.at_least is not None:
            return "met" if self.median >= self.at_least else "MISSED"
        if self.at_most is not None:
            return "met" if self.median < self.at_most else "MISSED"
        return ""

    @property
    def spread(self) -> str:
        """The single runs, where there were several."""
        return "  ".join(map(_shown, self.values)) if len(self.values) > 1 else ""


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def print_figures(figures: Sequence[Figure]) -> None:
    """The table, one row a figure."""
    table = Table("part", "figure", "value", "unit", "target", "", "single runs")
    table.columns[2].justify = "right"
    previous = ""
    for one in figures:
        if previous and previous != one.part:
            table.add_section()
        part = one.part if one.part != previous else ""
        table.add_row(
            part, one.what, _shown(one.median), one.unit, one.target, one.verdict, one.spread
        )
        previous = one.part
    # In a file or a pipe rich would squeeze it into 80 columns.
    Console(width=None if sys.stdout.isatty() else 120).print(table)
