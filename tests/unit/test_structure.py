"""The MIME tree: section numbers, odd servers, odd senders, and bounds for hostile ones."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imapclient.response_parser import parse_fetch_response

from service.mail.entities import MAX_DEPTH, MAX_PARTS
from service.mail.structure import parse_bodystructure, parse_raw_structure
from service.model import Part

TEXT = (b"text", b"plain", (b"charset", b"utf-8"), None, None, b"7bit", 5, 1)
HTML = (b"text", b"html", None, None, None, b"quoted-printable", 9, 1, None, None, None, None)
PDF = (b"application", b"pdf", None, None, None, b"base64", 8, None, None, None, None)
ENVELOPE = (None,) * 10


BOX: tuple[object, ...] = ()
for _ in range(5000):
    BOX = (BOX,)
TWO_TEXTS = Part("", "multipart/mixed", children=(Part("1", "text/plain"), Part("2", "text/plain")))


def message(child: object, *extension: object) -> tuple[object, ...]:
    return (b"message", b"rfc822", None, None, None, b"7bit", 99, ENVELOPE, child, 7, *extension)


def walk(part: Part) -> Iterator[Part]:
    yield part
    for child in part.children:
        yield from walk(child)


def sections(root: Part) -> list[tuple[str, str]]:
    return [(part.section, part.content_type) for part in walk(root)]


def entity(content_type: str, body: str = "x") -> str:
    return f"Content-Type: {content_type}\r\n\r\n{body}"


def multipart(subtype: str, boundary: str, *parts: str) -> str:
    body = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"--{boundary}--\r\n"
    return entity(f'multipart/{subtype}; boundary="{boundary}"', body)


# The example of RFC 3501 section 6.4.5.
RFC_3501 = (
    TEXT,
    PDF,
    message((TEXT, PDF, b"mixed")),
    (
        (b"image", b"gif", None, None, None, b"base64", 8),
        message((TEXT, (TEXT, HTML, b"alternative"), b"mixed")),
        b"mixed",
    ),
    b"mixed",
)
RFC_3501_RAW = multipart(
    "mixed",
    "a",
    entity("text/plain"),
    entity("application/pdf"),
    entity(
        "message/rfc822",
        multipart("mixed", "b", entity("text/plain"), entity("application/pdf")),
    ),
    multipart(
        "mixed",
        "c",
        entity("image/gif"),
        entity(
            "message/rfc822",
            multipart(
                "mixed",
                "d",
                entity("text/plain"),
                multipart("alternative", "e", entity("text/plain"), entity("text/html")),
            ),
        ),
    ),
)
RFC_3501_SECTIONS = [
    ("", "multipart/mixed"),
    ("1", "text/plain"),
    ("2", "application/pdf"),
    ("3", "message/rfc822"),
    ("3", "multipart/mixed"),
    ("3.1", "text/plain"),
    ("3.2", "application/pdf"),
    ("4", "multipart/mixed"),
    ("4.1", "image/gif"),
    ("4.2", "message/rfc822"),
    ("4.2", "multipart/mixed"),
    ("4.2.1", "text/plain"),
    ("4.2.2", "multipart/alternative"),
    ("4.2.2.1", "text/plain"),
    ("4.2.2.2", "text/html"),
]


def test_sections_are_those_of_rfc_3501() -> None:
    assert sections(parse_bodystructure(RFC_3501)) == RFC_3501_SECTIONS
    assert sections(parse_raw_structure(RFC_3501_RAW.encode())[0]) == RFC_3501_SECTIONS


@pytest.mark.parametrize(
    ("response", "raw", "expected"),
    [
        (TEXT, entity("text/plain"), [("1", "text/plain")]),
        (
            message(TEXT),
            entity("message/rfc822", entity("text/plain")),
            [("1", "message/rfc822"), ("1.1", "text/plain")],
        ),
        (
            message(message(TEXT)),
            entity("message/rfc822", entity("message/rfc822", entity("text/plain"))),
            [("1", "message/rfc822"), ("1.1", "message/rfc822"), ("1.1.1", "text/plain")],
        ),
        (
            message((TEXT, b"mixed")),
            entity("message/rfc822", multipart("mixed", "a", entity("text/plain"))),
            [("1", "message/rfc822"), ("1", "multipart/mixed"), ("1.1", "text/plain")],
        ),
        (
            (message(TEXT), b"digest"),
            multipart("digest", "a", "\r\n" + entity("text/plain")),
            [("", "multipart/digest"), ("1", "message/rfc822"), ("1.1", "text/plain")],
        ),
    ],
)
def test_roots_and_messages_are_numbered(
    response: object, raw: str, expected: list[tuple[str, str]]
) -> None:
    assert sections(parse_bodystructure(response)) == expected
    assert sections(parse_raw_structure(raw.encode())[0]) == expected


def fetched(bodystructure: bytes) -> Part:
    """As IMAPClient hands it over."""
    line = b"1 (UID 7 BODYSTRUCTURE (%s))" % bodystructure
    data: Any = parse_fetch_response([line])[7][b"BODYSTRUCTURE"]
    return parse_bodystructure(data)


def test_exchange_sends_the_disposition_as_a_string() -> None:
    """Case a15."""
    root = fetched(
        b'("text" "plain" ("charset" "utf-8") NIL NIL "7bit" 5 1 NIL "inline" NIL NIL)'
        b'("text" "html" ("charset" "utf-8") NIL NIL "7bit" 5 1 NIL "inline" NIL NIL)'
        b'("application" "pdf" ("name" "bill.pdf") NIL NIL "base64" 120 NIL'
        b' ("attachment" ("filename" "bill.pdf")) NIL NIL)'
        b' "mixed" ("boundary" "b") NIL NIL'
    )
    assert [(part.disposition, part.filename) for part in root.children] == [
        ("inline", None),
        ("inline", None),
        ("attachment", "bill.pdf"),
    ]


def test_all_fields_of_a_part_are_read() -> None:
    part = fetched(
        b'"IMAGE" "PNG" ("NAME" "a.png" "X-UNIX-MODE" "0644") "<id@example.com>" "a logo"'
        b' "BASE64" 4711 NIL ("INLINE" ("FILENAME" "logo.png")) NIL NIL'
    )
    assert part == Part(
        section="1",
        content_type="image/png",
        encoding="base64",
        size_bytes=4711,
        filename="logo.png",
        disposition="inline",
        content_id="id@example.com",
        params={"name": "a.png", "x-unix-mode": "0644"},
    )


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ((None, None, None, None, None, None, None), Part("1", "text/plain")),
        ((b"", b"", None, None, None, b"7bit", 56), Part("1", "text/plain", size_bytes=56)),
        ((b"application", b"pdf"), Part("1", "application/pdf")),
        (
            (b"application", b"pdf", (b"name", 123), None, None, b"7bit", b"12"),
            Part("1", "application/pdf", size_bytes=12, filename="123", params={"name": "123"}),
        ),
        (
            (b"application", b"pdf", (b"name",), None, None, b"7bit", None),
            Part("1", "application/pdf"),
        ),
        (
            (b"application", b"pdf", b"junk", b"<>", None, b" BASE64 ", -1),
            Part("1", "application/pdf", encoding="base64"),
        ),
        (
            (
                b"message",
                b"rfc822",
                None,
                None,
                None,
                b"7bit",
                9,
                None,
                (b"attachment", (b"filename", b"a.eml")),
                None,
                None,
            ),
            Part("1", "message/rfc822", size_bytes=9, filename="a.eml", disposition="attachment"),
        ),
        (([], b"mixed"), Part("", "multipart/mixed")),
        (
            ((b"text", b"plain"), b"MIXED", None, b"inline"),
            Part(
                "",
                "multipart/mixed",
                disposition="inline",
                children=(Part("1", "text/plain"),),
            ),
        ),
        (((b"text", b"plain"),) * 2 + (None,), TWO_TEXTS),
        (([(b"text", b"plain")] * 2, None), TWO_TEXTS),
    ],
)
def test_missing_and_odd_fields_are_put_up_with(response: object, expected: Part) -> None:
    assert parse_bodystructure(response) == expected


@pytest.mark.parametrize(
    "response",
    [None, b"text", "text", 5, (), [], (None,), ((), b"mixed"), ([5], b"mixed"), ({},), {}, BOX],
)
def test_nonsense_is_a_value_error(response: object) -> None:
    with pytest.raises(ValueError, match="no body structure"):
        parse_bodystructure(response)


def test_twenty_thousand_parts_are_read() -> None:
    root = parse_bodystructure(([PDF] * 20_000, b"mixed"))
    assert root.children[-1].section == "20000"


def nested(levels: int) -> object:
    node: object = TEXT
    for _ in range(levels):
        node = (node, b"mixed")
    return node


def test_depth_and_width_have_limits() -> None:
    assert parse_bodystructure(nested(MAX_DEPTH - 1))
    for hostile in (nested(MAX_DEPTH), nested(1500), ([TEXT] * MAX_PARTS, b"mixed")):
        with pytest.raises(ValueError, match="more than"):
            parse_bodystructure(hostile)


def test_hostile_raw_messages_are_value_errors() -> None:
    opened = "".join(
        f"Content-Type: multipart/mixed; boundary=b{level}\r\n\r\n--b{level}\r\n"
        for level in range(1500)
    )
    forwards = "Content-Type: message/rfc822\r\n\r\n" * 1500
    parts = multipart("mixed", "b", *["\r\n"] * MAX_PARTS)
    for hostile in (opened, forwards, parts):
        with pytest.raises(ValueError, match="more than"):
            parse_raw_structure(hostile.encode())


def test_sizes_and_contents_are_those_of_a_server() -> None:
    """Checked against Dovecot: line ends count as CRLF, delimiters own the one before them."""
    raw = (
        b"Content-Type: multipart/mixed; boundary=b\n\npreamble\n"
        b"--b\n\none\ntwo\n"
        b"--b  \nContent-Type: message/rfc822\n\n"
        b"Content-Type: multipart/mixed; boundary=c\n\n--c\n\nx\n--c--\n"
        b"--b\nContent-Type: message/rfc822\n\nSubject: no blank line\n"
        b"--b\n--b--\nepilogue\n--b\n\nlate\n"
    )
    root, contents = parse_raw_structure(raw)
    assert [(part.section, part.size_bytes) for part in root.children] == [
        ("1", 8),
        ("2", 62),
        ("3", 24),
        ("4", 0),
    ]
    assert contents["1"] == b"one\r\ntwo"
    assert contents["2"].endswith(b"x\r\n--c--\r\n")
    assert contents["2.1"] == b"x"
    assert contents["3.1"] == b""


def test_the_innermost_and_longest_boundary_wins() -> None:
    raw = (
        "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n"
        "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n\r\nsame boundary\r\n--a--\r\n"
        "--a\r\nContent-Type: multipart/mixed; boundary=ab\r\n\r\n--ab\r\n\r\nlonger\r\n--ab--\r\n"
        "--a--\r\n"
    )
    root, contents = parse_raw_structure(raw.encode())
    assert [len(part.children) for part in root.children] == [1, 1]
    assert (contents["1.1"], contents["2.1"]) == (b"same boundary", b"longer")


@pytest.mark.parametrize(
    "raw",
    [
        "Content-Type: multipart/mixed; boundary=b\r\n\r\nno delimiter",
        "Content-Type: multipart/mixed\r\n\r\n--b\r\n\r\nno boundary\r\n--b--",
    ],
)
def test_a_multipart_without_parts_shows_one_empty_text(raw: str) -> None:
    root, contents = parse_raw_structure(raw.encode())
    assert sections(root) == [("", "multipart/mixed"), ("1", "text/plain")]
    assert contents == {"1": b""}


def test_the_last_part_may_lack_its_delimiter() -> None:
    _, contents = parse_raw_structure(b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\nend")
    assert contents == {"1": b"end"}


@pytest.mark.parametrize("raw", [b"", b"\r\n", b"\r\nbody", b"no header at all", b"--x\r\n", b"\0"])
def test_a_message_without_header_is_plain_text(raw: bytes) -> None:
    root, contents = parse_raw_structure(raw)
    assert (root.content_type, root.section) == ("text/plain", "1")
    assert root.size_bytes == len(contents["1"])


@pytest.mark.parametrize(
    ("fields", "filename"),
    [
        # Case a08.
        (
            'Content-Disposition: attachment; filename="=?utf-8?Q?Contract_?=27 04 20.pdf"',
            "Contract 27 04 20.pdf",
        ),
        (
            "Content-Disposition: attachment;"
            " filename*0*=UTF-8''%47%72%75%6E%64%6D%61%C3%9F%20%48%61%75%73;\r\n"
            " filename*1*=%20%35%2E%70%64%66",
            "Grundmaß Haus 5.pdf",
        ),
        ('Content-Disposition: attachment; filename="=?utf-8?b??="', None),
        ("Content-Disposition: attachment; filename*=us-ascii''R%F6hre.pdf", "Röhre.pdf"),
        # Case a06.
        (
            "Content-Type: application/octet-stream;\r\n"
            '\tname="=?ISO-8859-1?Q?Ticket_facture_n=B04754=5F1=2EPDF?="',
            "Ticket facture n°4754_1.PDF",
        ),
        (
            'Content-Type: a/b; name="type.pdf"\r\nContent-Disposition: inline; filename=disp.pdf',
            "disp.pdf",
        ),
        (
            'Content-Type: a/b; name="type.pdf"\r\nContent-Disposition: inline; filename=""',
            "type.pdf",
        ),
        (
            "Content-Disposition: x; filename*1*=b.pdf; filename*0*=utf-8''%C3%A4; filename=c",
            "äb.pdf",
        ),
        ('Content-Disposition: x; filename*0="=?utf-8?B?w6Q"; filename*1="ucGRm?="', "ä.pdf"),
        ("Content-Disposition: x; filename*=utf-8'de'50%ZZ%.pdf", "50%ZZ%.pdf"),
        (
            "Content-Disposition: x; filename=\"UTF-8''Rechnung%20M%C3%A4rz.pdf\"",
            "Rechnung März.pdf",
        ),
        ('Content-Disposition: x; filename="100% sure\'s.pdf"', "100% sure's.pdf"),
        ("Content-Disposition: x; filename*=nonsense''%e4.pdf", "ä.pdf"),
        ('Content-Disposition: x; filename="a\\"b;c.pdf"', 'a"b;c.pdf'),
        ("Content-Disposition: x; filename=Annual report.pdf", "Annual report.pdf"),
        ('Content-Disposition: x; filename="..\\\\..\\\\etc/passwd"', ".._.._etc_passwd"),
        ('Content-Disposition: x; filename="C:\\\\Users\\\\me\\\\bill.pdf"', "bill.pdf"),
        ('Content-Disposition: x; filename="a\0\x07b\u202efdp.exe"', "abfdp.exe"),
        ('Content-Disposition: x; filename="unterminated.pdf', "unterminated.pdf"),
        ("Content-Disposition: attachment", None),
        ('Content-Disposition: x; filename="  "', None),
    ],
)
def test_file_names(fields: str, filename: str | None) -> None:
    part, _ = parse_raw_structure(f"{fields}\r\n\r\n".encode())
    assert part.filename == filename


def test_a_server_may_leave_names_as_they_were_sent() -> None:
    part = fetched(
        b'"application" "pdf" NIL NIL NIL "base64" 120 NIL'
        b' ("attachment" ("filename*" "us-ascii\'\'R%F6hre.pdf")) NIL NIL'
    )
    assert part.filename == "Röhre.pdf"


def test_latin1_names_are_read_and_long_ones_keep_their_extension() -> None:
    part, _ = parse_raw_structure('Content-Type: a/b; name="Größe.pdf"\n\n'.encode("latin-1"))
    assert part.filename == "Größe.pdf"
    part, _ = parse_raw_structure(b"Content-Type: a/b; name=" + b"x" * 5000 + b".pdf\n\n")
    assert part.filename is not None
    assert (len(part.filename), part.filename[-5:]) == (255, "x.pdf")


ATOMS = st.none() | st.integers() | st.binary(max_size=8) | st.sampled_from([b"message", b"rfc822"])
NODES = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=12).map(tuple), max_leaves=40)


@given(NODES)
def test_any_response_is_a_part_or_a_value_error(response: object) -> None:
    try:
        part = parse_bodystructure(response)
    except ValueError:
        return
    assert isinstance(part, Part)


LINES = st.sampled_from([
    b"--a", b"--a--", b"--ab", b"", b"x", b"Content-Type: multipart/mixed; boundary=a",
    b"Content-Type: multipart/digest; boundary=ab", b"Content-Type: message/rfc822",
    b"Content-Disposition: attachment; filename*0*=a'b; filename=\"", b" folded\0\xff", b"--",
])  # fmt: skip


@given(st.lists(LINES | st.binary(max_size=10)).map(b"\n".join))
def test_any_raw_message_gives_every_part_with_its_octets(raw: bytes) -> None:
    root, contents = parse_raw_structure(raw)
    leaves = [part for part in walk(root) if not part.content_type.startswith("multipart/")]
    assert {part.section: part.size_bytes for part in leaves} == {
        section: len(octets) for section, octets in contents.items()
    }
    assert len(leaves) == len(contents)
