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
        (["address", "E-mail_Address"], None, 1, "E-mail_Address"),
        (["Indirizzo e-mail"], None, 0, "Indirizzo e-mail"),
        (["MAIL", "id"], None, 0, "MAIL"),
        (["a.c", "abc"], "a.c", 0, "a.c"),
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
        (
            ["id", "contact"],
            None,
            "no column is called email, e-mail or the like; there are: 1 id, 2",
        ),
        (["mail", "E-Mail"], None, "2 columns are called email, e-mail or the like; there are: 1"),
        (["email", "EMAIL"], "email", "2 columns are called email; there are: 1 email, 2 EMAIL"),
        (["email"], "mail", "no column is called mail; there are: 1 email"),
        (["email"], "2", "there is no column 2; there are: 1 email"),
        (["email"], "0", "there is no column 0; there are: 1 email"),
        (["a@example.com"], "mail", "there is no column mail: the first row holds an address"),
        (["\x1b[2J"], None, "or the like; there are: 1 \ufffd[2J"),
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
