"""Which column of a CSV file holds the e-mail addresses, decided by its first row alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.cli.common import printable
from service.errors import MailroomError

_HINT = "say --column NAME or --column NUMBER"
_MAX_SHOWN = 20
_MAX_NAME_CHARS = 40


@dataclass(frozen=True, slots=True)
class Column:
    """Where the addresses are; the name is None if the first row is no header."""

    index: int
    name: str | None

    def __str__(self) -> str:
        return str(self.index + 1) if self.name is None else _shown(self.name)


def find_column(first_row: Sequence[str], wanted: str | None) -> Column:
    """The column of this name or number, counted from 1; without one the column that looks like it.

    A first row without any "@" is a header. MailroomError, if there is none or more than one.
    """
    has_header = not any("@" in cell for cell in first_row)
    if wanted is not None and wanted.isdecimal():
        index = _by_number(first_row, int(wanted))
    elif not has_header:
        index = _without_names(first_row, wanted)
    elif wanted is not None:
        index = _the_only(_named(first_row, wanted), first_row, f"are named {_shown(wanted)}")
    else:
        index = _the_only(_likely(first_row), first_row, "may hold the addresses")
    return Column(index, first_row[index].strip() if has_header else None)


def _by_number(first_row: Sequence[str], number: int) -> int:
    if not 1 <= number <= len(first_row):
        raise MailroomError(f"there is no column {number}; {_listed(first_row)}", hint=_HINT)
    return number - 1


def _without_names(first_row: Sequence[str], wanted: str | None) -> int:
    if wanted is not None:
        raise MailroomError(
            f"there is no column {_shown(wanted)}: the first row holds an address and no names",
            hint="say --column NUMBER",
        )
    return next(index for index, cell in enumerate(first_row) if "@" in cell)


def _named(names: Sequence[str], wanted: str) -> list[int]:
    exact = wanted.strip().casefold()
    return [index for index, name in enumerate(names) if name.strip().casefold() == exact]


def _likely(names: Sequence[str]) -> list[int]:
    """Those with the surest kind of name that occurs."""
    plain = ["".join(filter(str.isalnum, name.casefold())) for name in names]
    kinds = (
        [name in ("email", "mail", "emailaddress", "mailaddress") for name in plain],
        ["mail" in name for name in plain],
        [name in ("address", "addresses") for name in plain],
    )
    surest = next(filter(any, kinds), [])
    return [index for index, fits in enumerate(surest) if fits]


def _the_only(found: Sequence[int], names: Sequence[str], what: str) -> int:
    if len(found) == 1:
        return found[0]
    count = f"{len(found)} columns" if found else "no columns"
    raise MailroomError(f"{count} {what}; {_listed(names)}", hint=_HINT)


def _listed(names: Sequence[str]) -> str:
    shown = [f"{number} {_shown(name)}" for number, name in enumerate(names[:_MAX_SHOWN], 1)]
    more = len(names) - len(shown)
    return "there are: " + ", ".join(shown) + (f" and {more} more" if more else "")


def _shown(name: str) -> str:
    return printable(name.strip())[:_MAX_NAME_CHARS]
