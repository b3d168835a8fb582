"""One request with its text and results, and its attachments tried again."""

import json

import httpx
import psycopg
import pytest

from tests.servers.process import wait_until
from tests.system.api import Api
from tests.system.requests.rows import Rows, found, problem

HOSTILE_IDS = [
    "0",
    "-1",
    "+1",
    "1.0",
    "1e2",
    "abc",
    "%20",
    "1%00",
    "%F0%9D%9F%8F",  # a digit one of Unicode
    "%D9%A1",
    "%FF",
    "9223372036854775807",
    "9223372036854775808",
    "9" * 5000,
    "1%20OR%201=1",
    "..%2f..",
]
PATHS = [
    ("GET", "/api/v1/requests/{}"),
    ("GET", "/api/v1/attachments/{}/content"),
    ("POST", "/api/v1/attachments/{}/retry"),
]

# PostgreSQL's own spelling of each of these is what has to arrive, to the digit.
ODD_RESULTS = [
    "{}",
    '{"text": "", "pages": [], "warnings": []}',
    '{"result": null, "a": "\\"result\\":null", "text": "\\u2028 \\ud83d\\ude00 \\u0001"}',
    '{"tables": [{"name": "</script>", "rows": [[12345678901234567890.123456789, true, null]]}]}',
    '{"big": 1e400, "small": 1e-400, "long": ' + "9" * 5000 + "}",
    '{"deep": ' + "[" * 900 + "]" * 900 + "}",
]


def show(client: httpx.Client, request_id: int) -> httpx.Response:
    return client.get(f"/api/v1/requests/{request_id}")


def retry(client: httpx.Client, attachment_id: int) -> httpx.Response:
    return client.post(f"/api/v1/attachments/{attachment_id}/retry")


def test_a_request_has_its_text_and_the_results(client: httpx.Client, rows: Rows) -> None:
    request_id = rows.request(body_text='Grüße 😀 "result":null')
    rows.file(request_id, result='{"text": "one"}')
    rows.file(request_id, "failed", result='{"text": "two"}')
    rows.file(request_id, "skipped")
    rows.file(request_id, "pending")
    answer = show(client, request_id)
    (request,) = found(answer)
    listed = found(client.get("/api/v1/requests", params={"filter[mailbox]": rows.address}))
    results = [attachment.pop("result") for attachment in request["attachments"]]
    assert results == [{"text": "one"}, {"text": "two"}, None, None]
    assert request.pop("body_text") == 'Grüße 😀 "result":null'
    assert [request] == listed
    assert answer.json()["meta"] == {"requests_count": 1, "cursor": None}


@pytest.mark.parametrize("result", ODD_RESULTS, ids=range(len(ODD_RESULTS)))
def test_a_result_is_the_json_that_is_stored(
    api: Api, client: httpx.Client, rows: Rows, result: str
) -> None:
    request_id = rows.request()
    rows.file(request_id, result=result)
    with psycopg.connect(api.database_url) as conn:
        row = conn.execute(
            "SELECT result::text FROM attachment WHERE request_id = %s", [request_id]
        ).fetchone()
    assert row is not None
    assert f'"result":{row[0]}}}' in show(client, request_id).text


def test_large_results_arrive_whole(client: httpx.Client, rows: Rows) -> None:
    """Each is one that the pipeline may make at most."""
    request_id = rows.request()
    texts = [letter * 10_000_000 for letter in "abc"]
    for text in texts:
        rows.file(request_id, result=json.dumps({"text": text}))
    (request,) = found(show(client, request_id))
    assert [one["result"]["text"] for one in request["attachments"]] == texts


@pytest.mark.parametrize("hostile", HOSTILE_IDS)
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_what_is_no_id_of_one_is_a_404(
    client: httpx.Client, method: str, path: str, hostile: str
) -> None:
    assert problem(client.request(method, path.format(hostile))) == (404, "not-found")


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_one_resource_takes_no_parameters(
    client: httpx.Client, rows: Rows, method: str, path: str
) -> None:
    request_id = rows.request()
    one_id = request_id if "requests" in path else rows.file(request_id)
    answer = client.request(method, path.format(one_id), params={"limit": "1"})
    assert problem(answer) == (422, "invalid-request")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/requests"),
        ("DELETE", "/api/v1/requests/1"),
        ("GET", "/api/v1/attachments/1/retry"),
        ("PUT", "/api/v1/attachments/1/content"),
    ],
)
def test_another_method_is_a_405(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert problem(answer) == (405, "method-not-allowed")
    assert answer.headers["Allow"]


@pytest.mark.parametrize("status", ["done", "failed"])
def test_what_is_at_its_end_can_be_tried_again(
    client: httpx.Client, rows: Rows, status: str
) -> None:
    """The answer has it pending; then the pipeline takes it, and it comes to its end anew."""
    request_id = rows.request()
    columns = {"filename": "a.csv", "content_type": "text/csv", "attempts": 5}
    file_id = rows.file(request_id, status, b"a;b\r\n1;2\r\n", **columns)
    (attachment,) = found(retry(client, file_id), 202)
    assert (attachment["id"], attachment["status"], attachment["attempts"]) == (
        file_id,
        "pending",
        0,
    )
    assert (attachment["error"], attachment["finished_at"]) == (None, None)
    assert "result" not in attachment

    def is_done() -> bool:
        (request,) = found(show(client, request_id))
        return bool(request["attachments"][0]["status"] == "done")

    wait_until(is_done, seconds=20)
    (request,) = found(show(client, request_id))
    assert request["attachments"][0]["result"]["tables"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [("processing", "is being read"), ("skipped", "was skipped")],
)
def test_what_is_not_at_its_end_cannot_be_tried_again(
    client: httpx.Client, rows: Rows, status: str, reason: str
) -> None:
    request_id = rows.request(status)
    (before,) = found(show(client, request_id))
    answer = retry(client, before["attachments"][0]["id"])
    assert problem(answer) == (409, "not-retryable")
    assert reason in answer.json()["detail"]
    assert httpx.get(answer.json()["type"], verify=False).status_code == 200
    assert found(show(client, request_id)) == [before]


def test_what_waits_for_its_next_attempt_is_tried_at_once(client: httpx.Client, rows: Rows) -> None:
    (waiting,) = found(show(client, rows.request("pending")))
    assert retry(client, waiting["attachments"][0]["id"]).status_code == 202
