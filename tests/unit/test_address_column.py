"""Which column holds the addresses, by the first row."""

import pytest

from service.cli.enrich.address_column import find_column
from service.errors import MailroomError


@pytest.mark.parametrize(
    ("first_row", "wanted", "index", "name"),
    [
        (["id", "email"], None, 1, "email"),
        (["id", " E-Mail ", "city"], None, 1, "E-Mail"),
        (["email", "email verified", "mail sent"], None, 0, "email"),
        (["address", "Contact e-mail"], None, 1, "Contact e-mail"),
        (["Indirizzo e-mail"], None, 0, "Indirizzo e-mail"),
        (["id", "ADDRESS"], None, 1, "ADDRESS"),
        (["7", "anna@example.com", "bob@example.com"], None, 1, None),
        (["7", "anna@example.com", "bob@example.com"], "3", 2, None),
        (["id", "contact"], "Contact", 1, "contact"),
        (["id", "contact"], "2", 1, "contact"),
        (["email", "email"], "2", 1, "email"),
    ],
)
def test_the_column_is_found(
    first_row: list[str], wanted: str | None, index: int, name: str | None
) -> None:
    column = find_column(first_row, wanted)
    assert (column.index, column.name) == (index, name)
    assert str(column) == (name or str(index + 1))


@pytest.mark.parametrize(
    ("first_row", "wanted", "message"),
    [
        (["id", "contact"], None, "no columns may hold the addresses; there are: 1 id, 2 contact"),
        (["a mail", "b mail"], None, "2 columns may hold the addresses; there are: 1 a mail, 2 b"),
        (["email", "EMAIL"], "email", "2 columns are named email; there are: 1 email, 2 EMAIL"),
        (["email"], "mail", "no columns are named mail; there are: 1 email"),
        (["email"], "2", "there is no column 2; there are: 1 email"),
        (["email"], "0", "there is no column 0; there are: 1 email"),
        (["a@example.com"], "mail", "there is no column mail: the first row holds an address"),
        (["\x1b[2J"], None, "no columns may hold the addresses; there are: 1 \ufffd[2J"),
        (["x"] * 30, None, "20 x and 10 more"),
    ],
)
def test_what_is_not_clear_is_an_error_that_names_the_columns(
    first_row: list[str], wanted: str | None, message: str
) -> None:
    with pytest.raises(MailroomError) as caught:
        find_column(first_row, wanted)
    assert message in str(caught.value)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("say --column ")
