"""The client of the HTTP interface, for tests, scripts and services that wait for a mail.

`MailroomClient` blocks; `AsyncMailroomClient` runs on trio and on asyncio. Both need httpx and
nothing of the service itself. Everything they raise for what the service did is a `ClientError`.

    began = datetime.now(UTC)
    ...  # what makes the mail go out
    with MailroomClient("https://mail.example.com", token) as client:
        message = client.await_message("box@example.com", subject="Verify", since=began)
    print(message.codes[0])
"""

from service.client.clients import AsyncMailroomClient, MailroomClient
from service.client.errors import (
    AwaitTimeout,
    ClientError,
    MailboxAuthFailed,
    Problem,
    ProblemError,
    ServiceUnreachable,
    UnexpectedAnswer,
)
from service.client.message import Address, Addresses, Attachment, Link, Message, MessageList

__all__ = [
    "Address",
    "Addresses",
    "AsyncMailroomClient",
    "Attachment",
    "AwaitTimeout",
    "ClientError",
    "Link",
    "MailboxAuthFailed",
    "MailroomClient",
    "Message",
    "MessageList",
    "Problem",
    "ProblemError",
    "ServiceUnreachable",
    "UnexpectedAnswer",
]
