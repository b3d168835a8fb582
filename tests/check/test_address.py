"""What an address says without anybody being asked."""

import json
import time

import pytest
from email_validator import EmailNotValidError, validate_email
from hypothesis import given
from hypothesis import strategies as st

from service.check.address import Address, check_address
from service.model import AddressVerdict

LONG = f"{'b' * 63}.{'c' * 63}.{'d' * 61}.org"  # with 60 characters and the @ 254 octets


def verdict(email: str | None) -> AddressVerdict:
    """The verdict on an address that needs nobody to be asked; it has to fit into jsonb."""
    found = check_address(email)
    assert isinstance(found, AddressVerdict), found
    assert found.verdict == "invalid"
    assert 0 < len(found.detail) <= 300
    stored = json.dumps([found.detail, found.evidence], ensure_ascii=False)
    assert stored.isprintable()
    stored.encode()  # no lone surrogates
    return found


@pytest.mark.parametrize(
    ("email", "domain"),
    [
        ("anna@example.com", "example.com"),
        ("Anna.Schmidt+jobs@Mail.EXAMPLE.com", "mail.example.com"),
        ("o'hara_{x}/y=z@example.co.uk", "example.co.uk"),
        ("1@1.example.com", "1.example.com"),
        ('"anna schmidt"@example.com', "example.com"),
        ('"anna@home"@example.com', "example.com"),
        ('"a\\"b"@example.com', "example.com"),
        ("jörg@example.com", "example.com"),
        ("用户@example.com", "example.com"),
        ("anna@bücher.example.org", "xn--bcher-kva.example.org"),
        ("anna@BÜCHER.example.org", "xn--bcher-kva.example.org"),
        ("anna@xn--bcher-kva.example.org", "xn--bcher-kva.example.org"),
        ("anna@例え.example.org", "xn--r8jz45g.example.org"),
        ("anna@example。com", "example.com"),
        (f"{'a' * 64}@example.com", "example.com"),
        (
            f"{'a' * 60}@{'b' * 63}.{'c' * 63}.{'d' * 60}.org",
            f"{'b' * 63}.{'c' * 63}.{'d' * 60}.org",
        ),
    ],
)
def test_of_a_sound_address_the_domain_is_left_to_ask(email: str, domain: str) -> None:
    assert check_address(email) == Address(domain, is_role=False)


@pytest.mark.parametrize("email", [None, "", " ", "\t\r\n", "\u3000\xa0"])
def test_nothing_is_empty(email: str | None) -> None:
    assert verdict(email).reason == "empty"


@pytest.mark.parametrize(
    "email",
    [
        "a" * 10_240,
        f"anna@{'example.' * 1300}com",
        f"{'a' * 65}@example.com",
        f"{'ü' * 33}@example.com",
        f'"{"a" * 63}"@example.com',
        f"anna@{'ü' * 130}.com",
        f"{'a' * 61}@{LONG}",
        "\ud800" * 100,
        "@" * 10_240,
        '"' * 10_240,
        "e\u0301" * 5000,
        " " * 10_240 + "x",
    ],
)
def test_what_is_too_long_is_refused_at_once(email: str) -> None:
    began = time.perf_counter()
    assert verdict(email).reason == "too_long"
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    "email",
    [
        "anna",
        "anna@",
        "@example.com",
        "@",
        "anna@@example.com",
        "anna@home@example.com",
        " anna@example.com",
        "anna@example.com ",
        "anna schmidt@example.com",
        "anna@exam ple.com",
        "anna@example.com\n",
        "anna@example.com\r\nBcc: eve@example.com",
        "an\0na@example.com",
        "anna@exam\0ple.com",
        "anna@example.com\0",
        "\ud800@example.com",
        "anna@\udfff.com",
        "\x1b[31m@example.com",
        ".anna@example.com",
        "anna.@example.com",
        "an..na@example.com",
        '"anna@example.com',
        '"anna"schmidt@example.com',
        '"an\0na"@example.com',
        "Anna <anna@example.com>",
        "<anna@example.com>",
        "mailto:anna@",
        "anna@example.com, eve@example.com",
        "anna@example.com;eve@example.com",
        "anna\uff20example.com",
        "anna@example",
        "anna@example.com.",
        "anna@.example.com",
        "anna@example..com",
        "anna@-example.com",
        "anna@exa_mple.com",
        f"anna@{'a' * 64}.com",
        f"anna@{'ü' * 62}.com",
        "anna@☕.example.org",
        "anna@👩\u200d💻.example.org",
        "anna@xn--53h.example.org",
        "anna@xn--.example.org",
        "anna@192.0.2.1",
        "anna@[300.0.2.1]",
        "anna@[IPv6:nonsense]",
        "anna@[example.com]",
        "anna@[",
        "anna@localhost",
        "anna@host.local",
        "anna@example.test",
        "anna@example.invalid",
        "\u202eanna@example.com",
        "a" * 254,
    ],
)
def test_what_is_no_address_is_told_in_a_sentence(email: str) -> None:
    assert verdict(email).reason == "syntax"


@pytest.mark.parametrize("literal", ["[192.0.2.1]", "[IPv6:2001:db8::1]", "[127.0.0.1]"])
def test_an_ip_address_is_no_domain(literal: str) -> None:
    found = verdict(f"anna@{literal}")
    assert (found.reason, found.evidence) == ("ip_literal", {"domain": literal})


@pytest.mark.parametrize(
    ("domain", "listed"),
    [
        ("mailinator.com", "mailinator.com"),
        ("MAILINATOR.com", "mailinator.com"),
        ("a.b.mailinator.com", "mailinator.com"),
        ("yopmail.com", "yopmail.com"),
    ],
)
def test_a_disposable_domain_is_found_by_its_parents_too(domain: str, listed: str) -> None:
    found = verdict(f"anna@{domain}")
    assert found.reason == "disposable_domain"
    assert found.evidence == {"domain": domain.lower(), "listed": listed}
    assert listed in found.detail


def test_a_name_that_only_ends_like_a_disposable_one_is_sound() -> None:
    assert check_address("anna@nomailinator.com") == Address("nomailinator.com", is_role=False)


@pytest.mark.parametrize(
    ("local_part", "is_role"),
    [
        ("info", True),
        ("SALES", True),
        ("No-Reply", True),
        ("no_reply", True),
        ("noreply+7f3a", True),
        ("hr", True),
        ("jobs", True),
        ("mailer-daemon", True),
        ("anna", False),
        ("infos.anna", False),
        ("anna+info", False),
        ("hr.meier", False),
        ('"anna schmidt"', False),
        ('"info"', True),
    ],
)
def test_a_role_is_noted(local_part: str, is_role: bool) -> None:
    assert check_address(f"{local_part}@example.com") == Address("example.com", is_role=is_role)


LETTERS = [
    "anna",
    "example",
    "a" * 64,
    "ü",
    "☕",
    "ß",
    "\uff45",
    "\u0661",
    "\u0301",
    "xn--",
    "xn--bcher-kva",
]
MARKS = [
    *'.@"\\ -_+<>[],',
    "..",
    "\0",
    "\r\n",
    "\ud800",
    "\u202e",
    "。",
    "192.0.2.1",
    "IPv6:::1",
    ".com",
]
PIECES = st.sampled_from([*LETTERS, *MARKS])


@given(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=300))
def test_any_text_gets_an_answer(email: str) -> None:
    found = check_address(email)
    if isinstance(found, AddressVerdict):
        verdict(email)
    else:
        assert found.domain.isascii()
        assert found.domain == found.domain.lower().strip(".")


@given(
    st.text("aZ09.+-_'/=@ ", max_size=20),
    st.text("aZ09.-_ü", max_size=12),
    st.sampled_from([".com", "", ".test", ".", ".mailinator.com"]),
)
def test_the_short_way_agrees_with_the_validator(local_part: str, name: str, end: str) -> None:
    email = f"{local_part}@{name}{end}"
    try:
        found = validate_email(email, check_deliverability=False, strict=True)
    except EmailNotValidError:
        assert verdict(email).reason in ("syntax", "too_long")
    else:
        checked = check_address(email)
        if isinstance(checked, Address):
            assert checked.domain == found.ascii_domain
        else:
            assert checked.reason == "disposable_domain"
