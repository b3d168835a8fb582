"""The whole way of a mail: IMAP, extraction, LLM, webhook and API, in two replicas."""

import json
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import psycopg
from standardwebhooks import Webhook

from service.sandbox.files import make_csv, make_pdf
from tests.llm.endpoint import MODEL, OUTPUT, completion
from tests.scripted_http import Reply, ScriptedHttp
from tests.servers import Dovecot, wait_until
from tests.servers.service import Replica
from tests.system.api import open_api
from tests.webhook.events import SECRET

SCOPES = ("requests:index", "requests:write")


def mail_to(user: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "orders@example.org", user, "Two files"
    mail.set_content("Two boxes of A4 paper, as in the order.")
    pdf = make_pdf(["Order 4711", "2 boxes of A4 paper: 39.80 EUR"])
    mail.add_attachment(pdf, "application", "pdf", filename="order.pdf")
    mail.add_attachment(make_csv([["Order", "Price"], ["4711", "39.80"]]), filename="order.csv")
    mail.add_attachment(b"%PDF-1.4\nnothing", "application", "pdf", filename="broken.pdf")
    return mail


def test_a_mail_becomes_rows_an_event_and_an_answer(
    database_url: str, dovecot: Dovecot, tmp_path: Path
) -> None:
    user = dovecot.new_user()
    with ScriptedHttp(completion()) as llm, ScriptedHttp(Reply(500), Reply(204)) as receiver:
        settings = {
            "POLL_INTERVAL_SECONDS": "1",
            "LLM_BASE_URL": f"{llm.url}/v1",
            "LLM_MODEL": MODEL,
            "WEBHOOK_URL": receiver.url,
            "WEBHOOK_SECRET": SECRET,
            "WEBHOOK_ALLOW_PRIVATE": "true",
        }
        with open_api(tmp_path, database_url, **settings) as api:
            environment = {
                "DATABASE_URL": database_url,
                "SERVICE_SECRET_KEY": api.key.decode(),
                **settings,
            }
            with Replica(tmp_path, environment) as second:
                second.wait_ready()
                api.add_mailbox(user, dovecot.imap_port)
                api.execute(
                    "UPDATE email_mailbox_config SET enabled = true, ingest_since = NULL,"
                    " poll_interval = '1 second'"
                )
                dovecot.deliver(user, mail_to(user).as_bytes())
                wait_until(lambda: len(receiver.requests) == 1, seconds=20)
                with psycopg.connect(database_url) as conn:  # the next attempt would be in 5 s
                    conn.execute("UPDATE webhook_outbox SET next_attempt_at = now()")
                wait_until(lambda: len(receiver.requests) == 2, seconds=20)
                with api.client(api.create_token(scopes=SCOPES)) as client:
                    (entry,) = client.get("/api/v1/requests").json()["data"]["collection"]
                    shown = client.get(f"/api/v1/requests/{entry['id']}").json()
                assert second.stop() == 0
    check_event(receiver, entry["id"])
    check_request(shown["data"]["collection"][0])
    prompts = [one.body.decode() for one in llm.requests]
    assert len(prompts) == 2, "one call a readable file"
    assert all("Two boxes of A4 paper, as in the order." in prompt for prompt in prompts)


def check_event(receiver: ScriptedHttp, request_id: int) -> None:
    """Sent twice, because the first one was not taken: the same event, each signed."""
    events = [Webhook(SECRET).verify(one.body, dict(one.headers)) for one in receiver.requests]
    assert events[0] == events[1]
    assert len({one.headers["webhook-id"] for one in receiver.requests}) == 1
    data = events[0]["data"]
    assert (events[0]["type"], data["request_id"]) == ("request.completed", request_id)
    assert data["status"] == "failed", "one of its files is damaged"
    assert [one["status"] for one in data["attachments"]] == ["done", "done", "failed"]


def check_request(request: dict[str, Any]) -> None:
    assert (request["subject"], request["status"]) == ("Two files", "failed")
    pdf, table, broken = request["attachments"]
    assert "2 boxes of A4 paper: 39.80 EUR" in pdf["result"]["pages"][0]
    assert table["result"]["tables"][0]["rows"] == [["Order", "Price"], ["4711", "39.80"]]
    assert pdf["result"]["llm"]["output"] == table["result"]["llm"]["output"] == OUTPUT
    assert broken["error"].startswith("damaged: ")
    assert json.dumps(broken["result"]) == "null"
