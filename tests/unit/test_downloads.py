"""Names from strangers: safe as a part of a path, and as a header."""

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis.strategies import characters, text

from service.web.downloads import content_disposition, safe_filename

ANY_TEXT = text(characters(exclude_categories=()), max_size=300)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a.pdf", "a.pdf"),
        ("a b.pdf", "a_b.pdf"),
        ("C:\\Users\\x\\a.pdf", "C_Users_x_a.pdf"),
        ("a\0.pdf", "a_.pdf"),
        ("\ud800a\udfff.pdf", "a_.pdf"),
        ("\u2066\u202ea.pdf\u2069", "a.pdf"),
        ("\ufeffa\u200b.pdf", "a_.pdf"),
        ("a\u0308.pdf", "ä.pdf"),
        ("...", "-"),
        ("a.pdf. . ", "a.pdf"),
        ("x" * 300 + ".pdf", "x" * 120 + ".pdf"),
        ("x" * 300, "x" * 120),
        ("x." + "y" * 300, "x." + "y" * 118),
        (None, "-"),
    ],
)
def test_a_name_becomes_one_visible_part_of_a_path(name: str | None, safe: str) -> None:
    assert safe_filename(name, "-") == safe


@given(ANY_TEXT)
def test_whatever_the_name_the_header_is_one(name: str) -> None:
    safe = safe_filename(name, "attachment-1")
    assert 0 < len(safe) <= 141
    assert not set(safe) & set('/\\:*?"<>|%\r\n\0 \u202e')
    assert not safe.startswith(".")
    header = content_disposition(safe)
    shape = (
        r'attachment; filename="[A-Za-z0-9._-]+"(; filename\*=UTF-8\'\'[A-Za-z0-9!#$&+.^_`|~%-]+)?'
    )
    assert re.fullmatch(shape, header)
    assert safe == unquote(header.partition("''")[2]) or header == f'attachment; filename="{safe}"'


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("Rechnung_März.pdf", "\"Rechnung_Marz.pdf\"; filename*=UTF-8''Rechnung_M%C3%A4rz.pdf"),
        ("счёт.pdf", "\"____.pdf\"; filename*=UTF-8''%D1%81%D1%87%D1%91%D1%82.pdf"),
        ("a'b;c=d,e.pdf", "\"a_b_c_d_e.pdf\"; filename*=UTF-8''a%27b%3Bc%3Dd%2Ce.pdf"),
        ("plain-1_2.pdf", '"plain-1_2.pdf"'),
    ],
)
def test_what_is_not_ascii_is_given_twice(name: str, header: str) -> None:
    assert content_disposition(name) == f"attachment; filename={header}"
