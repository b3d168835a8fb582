"""Which column of a CSV file holds the e-mail addresses, decided by its first row alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.cli.common import printable
from service.errors import MailroomError

_USUAL_NAME = "(e[-_ ]?)?mail([-_ ]?address)?|indirizzo e-?mail"
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
    """The column of this name or number, counted from 1; else the one with a usual name.

    A first row without any "@" is a header. MailroomError, if there is none or more than one.
    """
    has_header = not any("@" in cell for cell in first_row)
    if wanted is not None and wanted.isdecimal():
        index = _by_number(first_row, int(wanted))
    elif not has_header:
        index = _without_names(first_row, wanted)
    elif wanted is not None:
        index = _the_only(first_row, re.escape(wanted.strip()), _shown(wanted))
    else:
        index = _the_only(first_row, _USUAL_NAME, "email, e-mail or the like")
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


def _the_only(names: Sequence[str], pattern: str, wanted: str) -> int:
    is_wanted = re.compile(pattern, re.IGNORECASE).fullmatch
    found = [index for index, name in enumerate(names) if is_wanted(name.strip())]
    if len(found) == 1:
        return found[0]
    count = f"{len(found)} columns are" if found else "no column is"
    raise MailroomError(f"{count} called {wanted}; {_listed(names)}", hint=_HINT)


def _listed(names: Sequence[str]) -> str:
    shown = [f"{number} {_shown(name)}" for number, name in enumerate(names[:_MAX_SHOWN], 1)]
    more = len(names) - len(shown)
    return "there are: " + ", ".join(shown) + (f" and {more} more" if more else "")


def _shown(name: str) -> str:
    return printable(name.strip())[:_MAX_NAME_CHARS]
