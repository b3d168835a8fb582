"""The bytes of an attachment: to be saved, and never to be run by a browser."""

import re
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest
import trio

from service.db.migrate import migrate
from service.db.pool import MAX_CONNECTIONS
from tests.servers import PostgresCluster
from tests.system.api import Api, open_api
from tests.system.requests.rows import Rows, problem

LARGE_BYTES = 25 * 1024 * 1024


def content(client: httpx.Client, attachment_id: int) -> httpx.Response:
    return client.get(f"/api/v1/attachments/{attachment_id}/content")


@pytest.mark.parametrize("octets", [b"", b"\0\r\n\xff", bytes(range(256)) * 4097])
def test_the_bytes_are_those_that_were_sent(
    client: httpx.Client, rows: Rows, octets: bytes
) -> None:
    answer = content(client, rows.file(rows.request(), content=octets))
    assert answer.status_code == 200
    assert answer.content == octets
    assert answer.headers["Content-Length"] == str(len(octets))


def test_a_browser_has_nothing_to_run(client: httpx.Client, rows: Rows) -> None:
    page = {"content_type": "text/html; charset=utf-8", "filename": "page.html"}
    answer = content(client, rows.file(rows.request(), content=b"<script>1</script>", **page))
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="page.html"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert answer.headers["Cache-Control"] == "private"
    assert int(answer.headers["RateLimit-Remaining"]) > 0


def test_a_body_is_the_text_of_the_mail(client: httpx.Client, rows: Rows) -> None:
    text = "Grüße 😀\r\n" * 100_000
    request_id = rows.request(body_text=text)
    answer = content(client, rows.body(request_id))
    assert answer.content == text.encode()
    assert answer.headers["Content-Type"] == "application/octet-stream"
    name = f'attachment; filename="request-{request_id}.txt"'
    assert answer.headers["Content-Disposition"] == name


def test_what_was_skipped_may_have_its_bytes(client: httpx.Client, rows: Rows) -> None:
    request_id = rows.request()
    assert content(client, rows.file(request_id, "skipped", b"MZ")).content == b"MZ"
    answer = content(client, rows.file(request_id, "skipped", None))
    assert problem(answer) == (404, "not-found")
    assert "were not kept (unsupported: an .exe)" in answer.json()["detail"]


def test_25_mb_arrive_whole_in_pieces(client: httpx.Client, rows: Rows) -> None:
    octets = bytes(range(256)) * (LARGE_BYTES // 256)
    answer = content(client, rows.file(rows.request(), content=octets))
    assert answer.content == octets


def test_head_has_the_headers_alone(client: httpx.Client, rows: Rows) -> None:
    answer = client.head(f"/api/v1/attachments/{rows.file(rows.request())}/content")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Content-Length"] == "5"


@pytest.mark.parametrize(
    ("sent", "saved"),
    [
        ("invoice.pdf", "invoice.pdf"),
        ("Rechnung März.pdf", "Rechnung_März.pdf"),
        ("счёт 1.xlsx", "счёт_1.xlsx"),
        ('a"b.pdf', "a_b.pdf"),
        ("a\\b/c.pdf", "a_b_c.pdf"),
        ("../../etc/passwd", "etc_passwd"),
        ("a\r\nSet-Cookie: x=1\r\n\r\n<b>.pdf", "a_Set-Cookie_x=1_b_.pdf"),
        ("a\u202efdp.exe", "a_fdp.exe"),
        ("'; filename*=UTF-8''x.exe", "';_filename_=UTF-8''x.exe"),
        ("%2e%2e%2fx.pdf", "2e_2e_2fx.pdf"),
        (".htaccess", "htaccess"),
        (" \t ", None),
        ("", None),
        (None, None),
    ],
)
def test_a_name_is_safe_to_save_under(
    api: Api, rows: Rows, sent: str | None, saved: str | None
) -> None:
    """Looked at as it is on the wire."""
    file_id = rows.file(rows.request(), filename=sent)
    head = raw_head(api, file_id)
    (line,) = (line for line in head.split(b"\r\n") if line.startswith(b"content-disposition:"))
    assert b"set-cookie:" not in head.lower()
    plain, extended = re.fullmatch(
        rb'content-disposition: attachment; filename="([A-Za-z0-9._-]+)"'
        rb"(?:; filename\*=UTF-8''([A-Za-z0-9!#$&+.^_`|~%-]+))?",
        line,
    ).groups()  # type: ignore[union-attr]
    assert unquote((extended or plain).decode()) == (saved or f"attachment-{file_id}")


def test_who_does_not_read_keeps_nobody_from_the_database(
    api: Api, client: httpx.Client, rows: Rows
) -> None:
    file_id = rows.file(rows.request(), content=bytes(LARGE_BYTES))
    with ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            connection = stack.enter_context(ask_for(api, file_id))
            assert connection.recv(16)
        assert client.get("/api/v1/requests").status_code == 200


def test_what_the_database_breaks_off_does_not_look_whole(tmp_path: Path) -> None:
    with PostgresCluster() as cluster:
        url = cluster.create_database("requests")
        trio.run(migrate, url)
        with open_api(tmp_path, url) as api:
            rows = Rows(api, "", None)
            file_id = rows.file(rows.request(), content=bytes(LARGE_BYTES))
            with ask_for(api, file_id) as connection:
                assert connection.recv(16)
                cluster.stop("immediate")
                assert len(read_all(connection)) < LARGE_BYTES
            log = api.replica.log.read_text()
    assert "an answer broke off" in log
    assert "ERROR" not in log


def raw_head(api: Api, file_id: int) -> bytes:
    """The octets of the answer up to the body."""
    with ask_for(api, file_id) as connection:
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert body == b"%PDF-"
    return head


def ask_for(api: Api, file_id: int) -> socket.socket:
    """A connection on which the content is on its way; who leaves it unread leaves it there."""
    token = api.create_token(scopes=("requests:index",))
    address = urlsplit(api.origin)
    connection = socket.create_connection((address.hostname, address.port), timeout=10)
    connection.sendall(
        f"GET /api/v1/attachments/{file_id}/content HTTP/1.1\r\nHost: example.com\r\n"
        f"Connection: close\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    return connection


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))
