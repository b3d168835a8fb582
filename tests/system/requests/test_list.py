"""The list: its entries, filters, pages and wrong parameters."""

import httpx
import pytest

from tests.system.api import Api
from tests.system.requests.rows import RECEIVED_AT, Rows, found, problem

LIST = "/api/v1/requests"
REQUESTS = 250


def ids(response: httpx.Response) -> list[int]:
    return [one["id"] for one in found(response)]


def list_of(client: httpx.Client, rows: Rows, **params: object) -> list[int]:
    """The ids that the list has of this mailbox."""
    query = {name: str(value) for name, value in params.items()}
    if "status" in query:
        query["filter[status]"] = query.pop("status")
    return ids(client.get(LIST, params={"filter[mailbox]": rows.address, **query}))


def test_an_entry_has_all_but_the_text_and_the_results(client: httpx.Client, rows: Rows) -> None:
    request_id = rows.request(
        message_id="<a@example.org>",
        message_id_reused=True,
        recipients='[{"kind": "to", "name": "Zoë", "address": "zoe@example.com"}]',
        sent_at=RECEIVED_AT,
    )
    file_id = rows.file(request_id, "failed", attempts=2)
    logo_id = rows.file(request_id, "skipped", filename=None, part_id="3")
    answer = client.get(LIST, params={"filter[mailbox]": rows.address})
    (entry,) = found(answer)
    assert entry.pop("created_at").endswith("+00:00")
    file, logo = entry.pop("attachments")
    assert entry == {
        "id": request_id,
        "mailbox": rows.address,
        "message_id": "<a@example.org>",
        "message_id_reused": True,
        "subject": entry["subject"],
        "sender": "Bob <bob@example.org>",
        "recipients": [{"kind": "to", "name": "Zoë", "address": "zoe@example.com"}],
        "sent_at": "2026-03-02T04:48:00+00:00",
        "received_at": "2026-03-02T04:48:00+00:00",
        "status": "failed",
    }
    assert {file.pop("created_at")[-6:], file.pop("finished_at")[-6:]} == {"+00:00"}
    assert file == {
        "id": file_id,
        "kind": "file",
        "part_id": "2",
        "filename": "invoice.pdf",
        "content_type": "application/pdf",
        "size_bytes": 5,
        "sha256": file["sha256"],
        "verdict": "extract",
        "verdict_reason": None,
        "status": "failed",
        "attempts": 2,
        "error": "damaged: it is broken",
    }
    assert (logo["id"], logo["filename"], logo["finished_at"]) == (logo_id, None, None)
    assert (logo["verdict"], logo["verdict_reason"]) == ("unsupported", "an .exe")
    assert answer.json()["meta"] == {"requests_count": 1, "cursor": None}


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (["pending"], "processing"),
        (["processing", "failed"], "processing"),
        (["done", "failed", "pending"], "processing"),
        (["done", "failed", "skipped"], "failed"),
        (["done", "skipped"], "done"),
        (["skipped"], "done"),
        ([], "done"),
    ],
)
def test_the_status_follows_from_those_of_the_attachments(
    client: httpx.Client, rows: Rows, statuses: list[str], status: str
) -> None:
    request_id = rows.request(*statuses)
    (entry,) = found(client.get(LIST, params={"filter[mailbox]": rows.address}))
    assert entry["status"] == status
    assert sorted(one["status"] for one in entry["attachments"]) == sorted(statuses)
    for wanted in ("processing", "failed", "done"):
        expected = [request_id] if wanted == status else []
        assert list_of(client, rows, status=wanted) == expected
        everywhere = ids(client.get(LIST, params={"filter[status]": wanted, "limit": 200}))
        assert (request_id in everywhere) is (wanted == status)


def test_the_mailbox_is_matched_whole_and_in_any_case(client: httpx.Client, rows: Rows) -> None:
    request_id = rows.request("done")
    for address in (rows.address, rows.address.lower(), rows.address.upper()):
        assert ids(client.get(LIST, params={"filter[mailbox]": address})) == [request_id]
    for other in (rows.address[1:], rows.address + "x", "%", " ", "nobody@example.com"):
        assert ids(client.get(LIST, params={"filter[mailbox]": other})) == []
    for octets in ("%FF", "%ED%A0%80", "x" * 5000):
        assert ids(client.get(f"{LIST}?filter[mailbox]={octets}")) == []


@pytest.mark.parametrize(
    ("since", "is_found"),
    [
        ("2026-03-02T04:48:00Z", True),
        ("2026-03-02T04:48:00.9Z", True),
        ("2026-03-02T04:48:01Z", False),
        ("2026-03-02T05:48:00+01:00", True),
        ("2026-03-02T05:48:01+01:00", False),
        ("2026-03-02", True),
        ("2026-03-03", False),
        ("0001-01-01", True),
        ("9999-12-31T23:59:59", False),
    ],
)
def test_since_is_when_the_server_received_it(
    client: httpx.Client, rows: Rows, since: str, is_found: bool
) -> None:
    request_id = rows.request("done")
    assert list_of(client, rows, since=since) == ([request_id] if is_found else [])


def test_all_filters_must_match(client: httpx.Client, rows: Rows) -> None:
    rows.request("done", received_at="2026-03-01T00:00:00Z")
    rows.request("failed")
    wanted = rows.request("done")
    assert list_of(client, rows, since="2026-03-02", status="done") == [wanted]


def test_many_requests_with_many_attachments(client: httpx.Client, rows: Rows) -> None:
    """Each has its own texts and files, in the order of the mail."""
    files = {}
    for number in range(3):
        request_id = rows.request(subject=f"Subject {number}", recipients='[{"name": "Z"}]')
        files[request_id] = [rows.file(request_id) for _ in range(4)]
    entries = found(client.get(LIST, params={"filter[mailbox]": rows.address}))
    assert [one["subject"] for one in entries] == ["Subject 2", "Subject 1", "Subject 0"]
    assert all(one["recipients"] == [{"name": "Z"}] for one in entries)
    seen = {one["id"]: [file["id"] for file in one["attachments"]] for one in entries}
    assert seen == files


def test_of_a_removed_mailbox_the_address_is_null(client: httpx.Client, api: Api) -> None:
    request_id = Rows(api, "", None).request("done")
    entries = {one["id"]: one for one in found(client.get(LIST, params={"limit": 200}))}
    assert entries[request_id]["mailbox"] is None


def test_every_request_is_on_one_page_while_others_arrive(client: httpx.Client, rows: Rows) -> None:
    """The pages of 50 hold all that was there at first, once, the newest first."""
    before = rows.many(REQUESTS)
    seen: list[int] = []
    params = {"filter[mailbox]": rows.address}
    while True:
        answer = client.get(LIST, params=params)
        seen += ids(answer)
        rows.request("pending")
        meta = answer.json()["meta"]
        if meta["cursor"] is None:
            break
        assert meta["requests_count"] == 50
        params["cursor"] = meta["cursor"]
    assert seen == before[::-1]


def test_the_last_page_may_be_full(client: httpx.Client, rows: Rows) -> None:
    newest = [rows.request("done") for _ in range(4)][::-1]
    params = {"filter[mailbox]": rows.address, "limit": "2"}
    first = client.get(LIST, params=params)
    last = client.get(LIST, params={**params, "cursor": first.json()["meta"]["cursor"]})
    assert [ids(first), ids(last)] == [newest[:2], newest[2:]]
    assert last.json()["meta"]["cursor"] is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"),
        ("limit", "201"),
        ("limit", "-1"),
        ("limit", "many"),
        ("limit", "\u0661\u0660"),
        ("cursor", ""),
        ("cursor", "0"),
        ("cursor", "-5"),
        ("cursor", "1.5"),
        ("cursor", "1e3"),
        ("cursor", "9" * 19),
        ("cursor", "9" * 5000),
        ("cursor", "\u0661\u0662"),
        ("cursor", "12\n"),
        ("cursor", "1\0"),
        ("cursor", "1' OR '1'='1"),
        ("filter[status]", "pending"),
        ("filter[status]", "Done"),
        ("filter[status]", ""),
        ("filter[mailbox]", ""),
        ("filter[mailbox]", "a\r\nb"),
        ("filter[mailbox]", "a\0b"),
        ("since", "yesterday"),
        ("since", ""),
        ("filter[subject]", "x"),
        ("mailbox", "a@example.com"),
        ("status", "done"),
        ("after", "1.2.3"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_a_422_that_names_it(
    client: httpx.Client, name: str, value: str
) -> None:
    answer = client.get(LIST, params={name: value})
    assert problem(answer) == (422, "invalid-request")
    assert [error["parameter"] for error in answer.json()["errors"]] == [name]


@pytest.mark.parametrize("query", ["limit=1&limit=2", "filter[status]=done&filter[status]=failed"])
def test_a_parameter_given_twice_is_a_422(client: httpx.Client, query: str) -> None:
    assert problem(client.get(f"{LIST}?{query}")) == (422, "invalid-request")


def test_the_highest_cursor_that_there_can_be_is_the_beginning(
    client: httpx.Client, rows: Rows
) -> None:
    request_id = rows.request("done")
    assert list_of(client, rows, cursor="9" * 18) == [request_id]
    assert list_of(client, rows, cursor=request_id) == []
