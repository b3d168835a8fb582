"""A client of somebody's HTTP API: what all of them share.

An answer comes whole, bounded in time and size, or `NoAnswer` says why there is none. Redirects
are not followed. What is quoted of a stranger's words is short, printable and never holds the key.
A URL or a key that cannot work is a `SettingsError` that names its variable.
"""

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Literal

import httpx
import trio

from service.errors import SettingsError

CONNECT_TIMEOUT_SECONDS = 10
MAX_QUOTE_CHARS = 300


class NoAnswer(Exception):
    """The API cannot be reached, or did not answer in time or to the end."""

    def __init__(self, outcome: Literal["timeout", "unreachable"], reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer as it came; of a body that is too long one byte more than the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A bearer key; wherever it would show, the name of its variable stands instead."""

    variable: str
    value: str | None = field(repr=False)

    def authorization(self) -> dict[str, str]:
        """The header that carries it, none without a key. SettingsError."""
        if self.value is None:
            return {}
        if not (self.value.isascii() and self.value.isprintable()) or " " in self.value:
            raise SettingsError(f"{self.variable}: must be printable ASCII without spaces")
        return {"Authorization": f"Bearer {self.value}"}

    def quote(self, text: str) -> str:
        """A stranger's text as one short printable line without the key."""
        if self.value:
            for shown in (self.value, json.dumps(self.value)[1:-1]):
                text = text.replace(shown, f"[{self.variable}]")
        return quote(text)

    def quote_body(self, body: bytes) -> str:
        """The message of an error document, else the beginning of the body."""
        try:
            document = json.loads(body)
            said: object = json.dumps(document, ensure_ascii=False)
        except (ValueError, RecursionError):
            return self.quote(body.decode("utf-8", "replace"))
        for name in ("error", "message", "detail"):
            if isinstance(document, dict) and document.get(name):
                said = document = document[name]
        return self.quote(said if isinstance(said, str) else json.dumps(said, ensure_ascii=False))


class ApiClient:
    """Sends requests to one API; made by `open_client`."""

    def __init__(
        self, http: httpx.AsyncClient, key: ApiKey, *, timeout_seconds: float, max_bytes: int
    ) -> None:
        self._http = http
        self.key = key
        self._timeout_seconds = timeout_seconds
        self._max_bytes = max_bytes

    async def send(
        self,
        method: str,
        url: str | httpx.URL,
        content: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> RawAnswer:
        """One call; `url` may be relative to that of the API. NoAnswer."""
        octets = bytearray()
        answer = await self.receive(
            method, url, octets.extend, self._max_bytes + 1, content=content, headers=headers
        )
        return replace(answer, body=bytes(octets))

    async def receive(
        self,
        method: str,
        url: str | httpx.URL,
        write: Callable[[bytes], object],
        max_bytes: int,
        *,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> RawAnswer:
        """One call whose body, up to `max_bytes` of it, goes to `write` as it comes. NoAnswer.

        `timeout_seconds` is for a body that may take its time, as long as it keeps coming.
        """
        limit_seconds = timeout_seconds or self._timeout_seconds
        try:
            with trio.fail_after(limit_seconds):
                async with self._http.stream(
                    method, url, content=content, headers=headers
                ) as response:
                    await _read_limited(response, write, max_bytes)
                    return RawAnswer(response.status_code, response.headers, b"")
        except (trio.TooSlowError, httpx.TimeoutException):
            raise NoAnswer("timeout", f"no answer within {limit_seconds:g} s") from None
        except httpx.RequestError as error:
            said = self.key.quote(f"{type(error).__name__} {error}")
            raise NoAnswer("unreachable", said) from None


@asynccontextmanager
async def open_client(
    url: httpx.URL,
    key: ApiKey,
    *,
    headers: Mapping[str, str],
    timeout_seconds: float,
    concurrency: int,
    max_bytes: int,
) -> AsyncIterator[ApiClient]:
    """A client for the API at `url`; the body of an answer may have `max_bytes`. SettingsError."""
    # They log each call and, at debug level, the headers of the answers.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    async with httpx.AsyncClient(
        base_url=url,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none are kept
        headers={
            **headers,
            "Accept-Encoding": "identity",  # a few bytes must not unpack into any number
            **key.authorization(),
        },
        timeout=httpx.Timeout(
            timeout_seconds, connect=min(CONNECT_TIMEOUT_SECONDS, timeout_seconds)
        ),
        limits=httpx.Limits(max_connections=concurrency),
    ) as http:
        yield ApiClient(http, key, timeout_seconds=timeout_seconds, max_bytes=max_bytes)


def parse_url(value: str, *, variable: str, key_variable: str) -> httpx.URL:
    """The URL of an API, from the setting `variable`. SettingsError."""
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL as error:
        raise SettingsError(f"{variable}: {error}") from None
    if url.userinfo:
        raise SettingsError(f"{variable}: no user or password; the key belongs into {key_variable}")
    if url.port is not None and not 0 < url.port < 65536:
        raise SettingsError(f"{variable}: the port must be within 1 and 65535")
    return url


def quote(text: str) -> str:
    """A stranger's text as one short printable line, ready for jsonb."""
    text = text[: 4 * MAX_QUOTE_CHARS]
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:MAX_QUOTE_CHARS]


async def _read_limited(
    response: httpx.Response, write: Callable[[bytes], object], max_bytes: int
) -> None:
    left = max_bytes
    with trio.CancelScope() as scope:
        async for chunk in response.aiter_raw():
            write(chunk[:left])
            left -= len(chunk)
            if left <= 0:
                # A break would leave the generators in httpx to the garbage collector.
                scope.cancel()
