"""Octets to text: damaged encodings, pieces, lying and missing charsets."""

import base64
import binascii
import quopri
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.mail.text import TransferDecoder, decode_charset, decode_transfer

ENCODINGS = ["base64", "quoted-printable", "x-uuencode", "7bit", "8bit", "binary", "x-unknown", ""]
GERMAN = "Sehr geehrte Damen und Herren, anbei die Rechnung für März. Grüße aus Köln, Jörg Müller."


def uuencoded(data: bytes) -> bytes:
    lines = [binascii.b2a_uu(data[at : at + 45]) for at in range(0, len(data), 45)]
    return b"begin 644 x.bin\n" + b"".join(lines) + b"`\nend\n"


@pytest.mark.parametrize(
    ("encoded", "decoded"),
    [
        (b"SGVsbG8=", b"Hello"),
        (b"SGVs\r\nbG8=\r\n", b"Hello"),
        (b"SGVsbG8", b"Hello"),  # no padding
        (b"SGVsbG8gV29ybGQhA", b"Hello World!"),  # a character too many
        (b"SG!Vs\0bG\xff8= ", b"Hello"),  # noise
        (b"SGVsbG8=\r\nSGVsbG8=", b"HelloHello"),  # two encoded runs, glued
        (b"SGVsbG8=\r\n-- \r\nA list's footer\r\n", b"Hello"),
        (b"=SGVsbG8=", b"Hello"),
        (b"====", b""),
        (b"A", b""),
        (b"", b""),
    ],
)
def test_base64_gives_what_can_be_saved(encoded: bytes, decoded: bytes) -> None:
    assert decode_transfer(encoded, "base64") == decoded


@pytest.mark.parametrize(
    ("encoded", "decoded"),
    [
        (b"caf=E9 =3D", b"caf\xe9 ="),
        (b"one=\r\n two=\n", b"one two"),
        (b"=ZZ =4", b"=ZZ =4"),
        (b"a=\rb\nc", b"a=\rb\nc"),
        (b"=", b""),
        (b"\xe4=e4", b"\xe4\xe4"),
    ],
)
def test_quoted_printable(encoded: bytes, decoded: bytes) -> None:
    assert decode_transfer(encoded, "quoted-printable") == decoded


@pytest.mark.parametrize(
    "encoded",
    [
        uuencoded(b"Hello" * 40),
        uuencoded(b"Hello" * 40).replace(b"\n", b"\r\n"),
        b"text before\n" + uuencoded(b"Hello" * 40) + b"text after\n",
    ],
)
def test_uuencode(encoded: bytes) -> None:
    assert decode_transfer(encoded, "x-uuencode").startswith(b"Hello" * 40)


def test_broken_uuencode_keeps_the_good_lines() -> None:
    encoded = uuencoded(b"Hello").replace(b"`\n", b"\xff\xff broken\n`\n")
    assert decode_transfer(encoded, "uue") == b"Hello"
    assert decode_transfer(b"no begin line", "uue") == b""


@pytest.mark.parametrize("encoding", ["7bit", "8bit", "binary", "x-unknown", ""])
def test_identity(encoding: str) -> None:
    assert decode_transfer(b"a=41\xff", encoding) == b"a=41\xff"


ENCODED = st.one_of(
    st.binary(),
    st.binary().map(base64.encodebytes),
    st.binary().map(lambda data: quopri.encodestring(data).replace(b"\n", b"\r\n")),
    st.binary(min_size=1).map(uuencoded),
    st.lists(st.sampled_from([b"=", b"==", b"QUJD", b"QQ", b"\r\n", b"-- ", b"=41", b"=C"])).map(
        b"".join
    ),
)


@given(ENCODED, st.lists(st.integers(0, 400)), st.sampled_from(ENCODINGS))
def test_pieces_decode_as_the_whole(encoded: bytes, cuts: list[int], encoding: str) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(encoded)), len(encoded)]
    decoder = TransferDecoder(encoding)
    pieces = [decoder.feed(encoded[start:end]) for start, end in pairwise(bounds)]
    assert b"".join([*pieces, decoder.finish()]) == decode_transfer(encoded, encoding)


@given(st.binary())
def test_what_was_encoded_comes_back(data: bytes) -> None:
    assert decode_transfer(base64.encodebytes(data), "base64") == data
    assert decode_transfer(uuencoded(data), "x-uuencode") == data


@pytest.mark.parametrize(
    ("text", "codec", "declared"),
    [
        ("Grüße", "utf-8", "utf-8"),
        ("Grüße", "utf-8", "UTF8"),
        ("Grüße", "utf-8-sig", "utf-8"),
        ("Grüße", "latin-1", "iso-8859-1"),
        ("Grüße", "latin-1", '"ISO-8859-1"'),
        ("„Grüße“ €", "cp1252", "iso-8859-1"),  # what is called latin-1 is cp1252
        ("€ 5", "cp1252", "cp-1252"),
        ("€ 5", "cp1252", "windows-1252 (Western)"),
        ("Zażółć", "iso8859-2", "iso-8859-2"),
        ("Привет", "koi8-r", "koi8-r"),
        ("한국", "cp949", "ks_c_5601-1987"),
        ("日本語", "cp932", "shift_jis"),
        ("日本語", "cp932", "x-sjis"),
        ("日本語", "iso2022_jp", "iso-2022-jp"),
        ("你好€", "gb18030", "gb2312"),
        ("你好", "big5", "big5"),
        ("Grüße", "mac_roman", "x-mac-roman"),
        ("Grüße", "mac_roman", "macintosh"),
        ("Grüße", "utf-16", "utf-16"),
        ("Grüße", "utf-7", "utf-7"),
        ("שלום", "iso8859-8", "iso-8859-8-i"),
        ("Grüße", "utf-8", "us-ascii"),  # it lies
        ("Grüße", "utf-8", None),
        ("Grüße", "utf-8", "no-such-charset"),
        ("Grüße", "utf-8", "unicode_escape"),
        ("Grüße", "utf-8", "base64"),
        ("Grüße", "utf-8", "\0"),
        ("Grüße", "latin-1", "utf-8"),  # it lies
        ("Grüße", "latin-1", None),
        ("Grüße", "utf-16", None),
        (GERMAN, "latin-1", None),
        ("Здравствуйте, просим оплатить счет за март. Благодарим заранее.", "cp1251", None),
        ("Здравствуйте, просим оплатить счет за март. Благодарим заранее.", "koi8-r", "us-ascii"),
        ("您好,附件是三月份的發票,請查收。如有問題請隨時聯繫我們。", "big5", "us-ascii"),
        ("", "utf-8", "utf-8"),
        # In these two Western and Central European make about equal sense to the guesser.
        ("Voilà où ça va: déjà très tôt.\nPerò così è già più caro.", "cp1252", None),
        ("Cher client, où en êtes-vous? Déjà là", "cp1252", None),
        ("Zażółć gęślą jaźń; Łódź, Kraków i Gdańsk", "cp1250", None),
    ],
)
def test_charsets(text: str, codec: str, declared: str | None) -> None:
    assert decode_charset(text.encode(codec), declared) == text


def test_a_declared_charset_survives_a_few_bad_octets() -> None:
    octets = "Grüße und äöü ".encode() * 20
    assert decode_charset(octets + b"\xff", "utf-8").endswith("äöü \ufffd")
    cut = "日本語".encode() * 100
    assert decode_charset(cut[:-1], "utf-8") == "日本語" * 99 + "日本\ufffd"


def test_a_nul_or_its_substitute_keeps_the_text_around_it() -> None:
    """Case a13; Dovecot sends 0x80 for NUL."""
    for octets in (b"before\0after", b"before\x80after"):
        text = decode_charset(octets, "utf-8")
        assert text.startswith("before")
        assert text.endswith("after")


LABELS = st.sampled_from(["utf-8", "utf-7", "utf-16", "us-ascii", "big5", "hz", "iso-2022-jp", "x"])


@given(st.binary() | st.text().map(str.encode), st.none() | LABELS | st.text())
def test_no_octets_and_no_label_raise(octets: bytes, charset: str | None) -> None:
    assert isinstance(decode_charset(octets, charset), str)
