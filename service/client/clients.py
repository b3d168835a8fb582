"""The blocking client and its async twin: each only carries out the calls of `flows`.

One HTTP connection is in use for each wait, without a limit. Close them, or use them in a `with`.
"""

import time
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar

import anyio
import httpx

from service.client import flows
from service.client.answers import Answer
from service.client.flows import Call, Flow
from service.client.message import Message, MessageList

CONNECT_SECONDS = 10.0
# On top of the wait that was asked for: a look at a slow mail server takes its time.
ANSWER_SECONDS = 30.0

_UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=20)

T = TypeVar("T")


class MailroomClient:
    """The HTTP interface for code that blocks; threads may share one.

    `transport` is httpx's own, for a private CA or a proxy:
    `httpx.HTTPTransport(verify=ssl_context)`.
    """

    def __init__(
        self, base_url: str, token: str, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._http = httpx.Client(
            base_url=_checked_url(base_url),
            headers=_authorization(token),
            limits=_UNLIMITED,
            transport=transport,
        )

    def await_message(
        self,
        mailbox: str,
        *,
        subject: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        since: datetime | str | None = None,
        after: str | None = None,
        timeout: float = 300.0,
    ) -> Message:
        """Wait until a message is there that matches all of `subject`, `from_` and `to`.

        They are substrings in any case. Say from when on, or an older mail that matches is the
        answer: with neither `since` nor `after` the first look takes the newest that exists.
        Best is `since`, a `datetime` with an offset taken before what sends the mail, in whole
        seconds; the answer is then the earliest match. `after` is a cursor (of an earlier
        message, or of `list_messages`) and does not depend on clocks.

        `timeout` is in seconds, beyond the service's 120 s too; 0 looks once. An overloaded,
        restarting or unreachable service is tried again until then. Raises `AwaitTimeout`, at once
        `MailboxAuthFailed` or another `ClientError` for what waiting cannot mend, and ValueError
        for a `since` without an offset or a negative `timeout`.
        """
        query = flows.create_query(subject=subject, from_=from_, to=to, since=since, after=after)
        return self._run(flows.await_message(mailbox, query, timeout))

    def list_messages(
        self,
        mailbox: str,
        *,
        subject: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        since: datetime | str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> MessageList:
        """The messages that are there and match, at most `limit` (by itself 50, up to 200).

        The newest first; with `since` or `after` the earliest first, and the list's `cursor` as
        `after` asks for the next ones. One call, nothing is tried again. Raises `ClientError`, and
        ValueError for a `since` without an offset.
        """
        query = flows.create_query(
            subject=subject, from_=from_, to=to, since=since, after=after, limit=limit
        )
        return self._run(flows.list_messages(mailbox, query))

    def get_message(self, mailbox: str, email_id: str) -> Message:
        """The message of this `email_id`. One call; raises `ClientError`."""
        return self._run(flows.get_message(mailbox, email_id))

    def close(self) -> None:
        """Close the connections; the client is of no use afterwards."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MailroomClient({str(self._http.base_url)!r})"

    def _run(self, flow: Flow[T]) -> T:
        call = next(flow)
        while True:
            time.sleep(call.pause_seconds)
            answer = self._answer(call)
            try:
                call = flow.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result

    def _answer(self, call: Call) -> Answer:
        try:
            return self._http.get(call.path, params=call.query, timeout=_time_limits(call))
        except httpx.RequestError as error:
            return error


class AsyncMailroomClient:
    """`MailroomClient` for trio and asyncio: the same calls, arguments and errors."""

    def __init__(
        self, base_url: str, token: str, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=_checked_url(base_url),
            headers=_authorization(token),
            limits=_UNLIMITED,
            transport=transport,
        )

    async def await_message(
        self,
        mailbox: str,
        *,
        subject: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        since: datetime | str | None = None,
        after: str | None = None,
        timeout: float = 300.0,  # noqa: ASYNC109 - it is told to the service
    ) -> Message:
        """See `MailroomClient.await_message`; say from when on with `since` or `after`."""
        query = flows.create_query(subject=subject, from_=from_, to=to, since=since, after=after)
        return await self._run(flows.await_message(mailbox, query, timeout))

    async def list_messages(
        self,
        mailbox: str,
        *,
        subject: str | None = None,
        from_: str | None = None,
        to: str | None = None,
        since: datetime | str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> MessageList:
        """See `MailroomClient.list_messages`."""
        query = flows.create_query(
            subject=subject, from_=from_, to=to, since=since, after=after, limit=limit
        )
        return await self._run(flows.list_messages(mailbox, query))

    async def get_message(self, mailbox: str, email_id: str) -> Message:
        """See `MailroomClient.get_message`."""
        return await self._run(flows.get_message(mailbox, email_id))

    async def aclose(self) -> None:
        """Close the connections; the client is of no use afterwards."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncMailroomClient({str(self._http.base_url)!r})"

    async def _run(self, flow: Flow[T]) -> T:
        call = next(flow)
        while True:
            await anyio.sleep(call.pause_seconds)
            answer = await self._answer(call)
            try:
                call = flow.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result

    async def _answer(self, call: Call) -> Answer:
        try:
            return await self._http.get(call.path, params=call.query, timeout=_time_limits(call))
        except httpx.RequestError as error:
            return error


def _time_limits(call: Call) -> httpx.Timeout:
    read_seconds = call.wait_seconds + ANSWER_SECONDS
    return httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=read_seconds)


def _checked_url(base_url: str) -> httpx.URL:
    """Told now, because a wrong one would look like a service that is away for a while."""
    url = httpx.URL(base_url)
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
        raise ValueError("base_url has to be like https://mail.example.com, without a password")
    return url


def _authorization(token: str) -> dict[str, str]:
    """Refuses what no header can carry: the errors of the layers below would quote it."""
    token = token.strip()  # it may come from a file
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise ValueError("the token is empty or holds what no token has, such as spaces")
    return {"Authorization": f"Bearer {token}"}
