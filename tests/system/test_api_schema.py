"""A replica keeps to the OpenAPI document that it serves, whatever schemathesis makes of it."""

from collections.abc import Callable, Iterator
from email.message import EmailMessage

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import APIOperation, BaseSchema, Case, GenerationMode
from schemathesis.config import (
    ChecksConfig,
    PositiveDataAcceptanceConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.core.parameters import ParameterLocation

from service.db.tokens import SCOPES
from tests.servers import Dovecot
from tests.system.api import Api
from tests.system.conftest import OpenSharedApi
from tests.system.requests.rows import Rows

EXAMPLES = 40
MAX_WAIT_SECONDS = 0.1


@pytest.fixture(scope="module")
def api(open_shared_api: OpenSharedApi) -> Iterator[Api]:
    with open_shared_api(
        "api_schema", AWAIT_POLL_INTERVAL_SECONDS="0.1", IMAP_TIMEOUT_SECONDS="5"
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def token(api: Api) -> str:
    return api.create_token(scopes=SCOPES)


@pytest.fixture(scope="module")
def mailbox(api: Api, dovecot: Dovecot) -> str:
    """With mails that have all that an answer may hold."""
    user = dovecot.new_user()
    dovecot.append(user, *map(mail, range(1, 4)), b"\r\n")
    api.add_mailbox(user, dovecot.imap_port)
    return user


@pytest.fixture(scope="module")
def known_ids(api: Api) -> dict[str, str]:
    """Of a request and its file, by their names in paths."""
    rows = Rows(api, "requests@example.com", api.insert_mailbox("requests@example.com"))
    request_id = rows.request("skipped", "failed")
    file_id = rows.file(request_id, "done", b"a;b\r\n", filename="a.csv", content_type="text/csv")
    return {"request_id": str(request_id), "attachment_id": str(file_id)}


@pytest.fixture(scope="module")
def document(api: Api) -> BaseSchema:
    """A right request is one that gets an answer; 408 is the one to a wait for nothing, 409 that
    to a second retry."""
    accepted = PositiveDataAcceptanceConfig(expected_statuses=["200", "202", "404", "408", "409"])
    project = ProjectConfig(checks=ChecksConfig(positive_data_acceptance=accepted))
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    return schemathesis.openapi.from_url(f"{api.origin}/openapi.json", config=config)


def mail(number: int) -> bytes:
    message = EmailMessage()
    message["From"] = "Ann Example <ann@example.com>"
    message["To"] = "b@example.com, Cid <c@example.org>"
    message["Cc"] = "d@example.net"
    message["Reply-To"] = "help@example.com"
    message["Date"] = "Mon, 02 Mar 2026 09:30:00 +0100"
    message["Message-ID"] = f"<{number}@example.com>"
    message["Subject"] = f"Grüße {number}"
    message.set_content(f"Your code is 12345{number}.\nhttps://example.com/{number}\n")
    message.add_alternative(f"<a href='https://example.com/{number}'>here</a>", subtype="html")
    message.add_attachment(b"%PDF-1.7", maintype="application", subtype="pdf", filename="a.pdf")
    return message.as_bytes().replace(b"\n", b"\r\n")


def test_the_document_is_openapi_3_1(api: Api) -> None:
    document = httpx.get(f"{api.origin}/openapi.json", verify=False).json()
    OpenAPIV31SpecValidator(document).validate()


def test_every_answer_to_a_right_request_is_as_documented(
    document: BaseSchema, api: Api, token: str, mailbox: str, known_ids: dict[str, str]
) -> None:
    """Half of them are for what is there; a cursor of messages is right only if it is of one."""
    with api.client(token) as client:
        cursor = client.get(api.messages(mailbox)).json()["meta"]["cursor"]

    def prepare(case: Case, is_known: bool) -> None:
        if "mailbox" in case.path_parameters:
            case.path_parameters["mailbox"] = mailbox if is_known else "nobody@example.com"
        if "email_id" in case.path_parameters and is_known:
            case.path_parameters["email_id"] = "1"
        if is_known:
            parameters = case.path_parameters
            parameters |= {name: known_ids[name] for name in known_ids.keys() & parameters}
        if "after" in case.query:
            case.query["after"] = cursor

    statuses: set[int] = set()
    for operation in operations(document):
        statuses |= check_operation(operation, GenerationMode.POSITIVE, token, prepare)
    assert statuses - {409} == {200, 202, 404, 408}


def test_every_answer_to_a_wrong_request_is_as_documented(
    document: BaseSchema, token: str, mailbox: str, known_ids: dict[str, str]
) -> None:
    """For what is there, unless the path is what is wrong."""
    known = known_ids | {"mailbox": mailbox}

    def prepare(case: Case, _: bool) -> None:
        assert case.meta is not None
        path = case.meta.components.get(ParameterLocation.PATH)
        if path is None or path.mode is GenerationMode.POSITIVE:
            parameters = case.path_parameters
            parameters |= {name: known[name] for name in known.keys() & parameters}

    statuses: set[int] = set()
    for operation in operations(document.include(path_regex="^/api/")):
        statuses |= check_operation(operation, GenerationMode.NEGATIVE, token, prepare)
    assert statuses >= {404, 422}


def test_what_is_answered_without_a_token_is_as_documented(
    document: BaseSchema, mailbox: str, known_ids: dict[str, str]
) -> None:
    known = known_ids | {"mailbox": mailbox, "email_id": "1"}
    for operation in operations(document.include(path_regex="^/api/")):
        names = [parameter.name for parameter in operation.path_parameters]
        case = operation.Case(path_parameters={name: known[name] for name in names})
        assert case.call_and_validate().status_code == 401


def operations(document: BaseSchema) -> list[APIOperation]:
    found = [result.ok() for result in document.get_all_operations()]
    assert found
    return found


def check_operation(
    operation: APIOperation,
    mode: GenerationMode,
    token: str,
    prepare: Callable[[Case, bool], None],
) -> set[int]:
    """Send made-up requests, and compare each answer with the document; returns the statuses."""
    statuses = set()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_known=booleans())
    def check(case: Case, is_known: bool) -> None:
        prepare(case, is_known)
        limit_wait(case)
        answer = case.call_and_validate(headers={"Authorization": f"Bearer {token}"})
        statuses.add(answer.status_code)

    check()
    return statuses


def limit_wait(case: Case) -> None:
    """No wait is long; what is no time to wait stays as it is."""
    if case.operation.path.endswith(":await"):
        timeout = case.query.get("timeout", 0)
        is_time = isinstance(timeout, int | float) and timeout > 0
        case.query["timeout"] = MAX_WAIT_SECONDS if is_time else timeout
