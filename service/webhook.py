"""One event to the webhook's receiver: signed as the Standard Webhooks specification says, POSTed.

Only the receiver's own 2xx is a delivery; all else, redirects included, raises `TryLater`. Private
addresses are refused: what is connected to is the very address that was checked, so that no second
DNS answer can differ. The URL may hold a token: no message and no log line has more of it than
`WebhookSender.receiver`.
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

import httpx
import trio
from standardwebhooks import Webhook

from service.errors import SettingsError, TryLater
from service.outbound import refuse_inside_transaction
from service.retry_after import parse_retry_after

TIMEOUT_SECONDS = 15
CONNECT_TIMEOUT_SECONDS = 5  # per address: the next one is to have its turn in time
USER_AGENT = f"mailroom/{version('mailroom')}"
Trace = Callable[[str, Mapping[str, Any]], Awaitable[None]]
_NAT64 = IPv6Network("64:ff9b::/96")


class WebhookSender:
    """Sends to the receiver at `url`. SettingsError if that cannot be one."""

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        allow_private: bool,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._url = _parse_url(url)
        self._webhook = Webhook(secret)
        self._allow_private = allow_private
        self._timeout_seconds = timeout_seconds
        self._tls = httpx.create_ssl_context()
        self._host = self._url.raw_host.decode("ascii")
        self.receiver = f"{self._url.scheme}://{self._host}"

    async def send(self, event_id: str, sent_at: datetime, payload: str) -> None:
        """POST the event once; returns when it was answered with 2xx. TryLater."""
        refuse_inside_transaction(f"a webhook to {self.receiver}")
        headers = self._headers(event_id, sent_at, payload)
        try:
            with trio.fail_after(self._timeout_seconds):
                addresses = await self._resolve()
                response = await self._post(addresses, headers, payload.encode())
        except trio.TooSlowError:
            raise TryLater(f"no answer within {self._timeout_seconds:g} s") from None
        _check_answer(response)

    def _headers(self, event_id: str, sent_at: datetime, payload: str) -> dict[str, str]:
        sent_at = sent_at.astimezone(UTC)  # the library takes it for UTC whatever it is
        return {
            "host": self._url.netloc.decode("ascii"),
            "user-agent": USER_AGENT,
            "content-type": "application/json",
            "webhook-id": event_id,
            "webhook-timestamp": str(int(sent_at.timestamp())),
            "webhook-signature": self._webhook.sign(event_id, sent_at, payload),
        }

    async def _resolve(self) -> list[str]:
        """The receiver's addresses, each of them checked."""
        try:
            found = await trio.socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise TryLater(f"{self._host} cannot be resolved: {_reason(error)}") from error
        addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
        private = [address for address in addresses if not is_public(address)]
        if private and not self._allow_private:
            raise TryLater(
                f"{self._host} has the private address {private[0]}; "
                "if that is meant to be, set WEBHOOK_ALLOW_PRIVATE=true"
            )
        return addresses

    async def _post(
        self, addresses: list[str], headers: dict[str, str], content: bytes
    ) -> httpx.Response:
        """The answer's status and headers, from the first address that can be connected to.

        By the transport, because a client logs the whole URL. The body is not read.
        """
        reason = f"{self._host} has no address"
        async with (
            _closing_connections() as trace,
            httpx.AsyncHTTPTransport(verify=self._tls) as transport,
        ):
            for address in addresses:
                request = self._request(address, headers, content)
                request.extensions["trace"] = trace
                try:
                    response = await transport.handle_async_request(request)
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    reason = f"cannot connect to {address}: {_reason(error)}"
                except httpx.TransportError as error:
                    raise TryLater(f"the connection broke: {_reason(error)}") from error
                else:
                    await response.aclose()
                    return response
        raise TryLater(reason)

    def _request(self, address: str, headers: dict[str, str], content: bytes) -> httpx.Request:
        extensions = {
            "sni_hostname": self._host.rstrip("."),
            "timeout": httpx.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS).as_dict(),
        }
        url = self._url.copy_with(host=address)
        return httpx.Request("POST", url, headers=headers, content=content, extensions=extensions)


def is_public(address: str) -> bool:
    """Whether the IP address is one of the public internet, and nobody's own network.

    An IPv6 address that stands for an IPv4 address is judged by that one.
    """
    ip = ip_address(address)
    if isinstance(ip, IPv6Address):
        embedded = _embedded(ip)
        if embedded:
            return all(map(is_public, embedded))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def _embedded(ip: IPv6Address) -> list[str]:
    """The IPv4 addresses inside: IPv4-mapped, 6to4, Teredo (both ends) or NAT64."""
    if ip.teredo is not None:
        return [str(one) for one in ip.teredo]
    if ip in _NAT64:
        return [str(ip_address(int(ip) & 0xFFFF_FFFF))]
    ipv4 = ip.ipv4_mapped or ip.sixtofour
    return [str(ipv4)] if ipv4 is not None else []


@asynccontextmanager
async def _closing_connections() -> AsyncIterator[Trace]:
    """For httpcore's `trace`: closes its connections, even when a TLS handshake is cancelled."""
    async with AsyncExitStack() as stack:

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                stack.push_async_callback(info["return_value"].aclose)

        yield trace


def _parse_url(url: str) -> httpx.URL:
    """The reason is not quoted: it may hold a part of the URL."""
    with suppress(httpx.InvalidURL):
        parsed = httpx.URL(url)
        has_port = parsed.port is None or 0 < parsed.port < 65_536
        if parsed.host and has_port and not parsed.userinfo:
            return parsed
    raise SettingsError("WEBHOOK_URL: must be like https://example.com/hook, without a login")


def _check_answer(response: httpx.Response) -> None:
    if response.is_success:
        return
    said = f"{response.status_code} {httpx.codes.get_reason_phrase(response.status_code)}".rstrip()
    if response.is_redirect:
        said += ", and redirects are not followed"
    retry_after_seconds = parse_retry_after(response.headers.get("retry-after"))
    raise TryLater(f"answered with {said}", retry_after_seconds=retry_after_seconds)


def _reason(error: BaseException) -> str:
    """What the innermost of the errors says that has something to say."""
    inner = error.__cause__ or error.__context__
    if isinstance(error, BaseExceptionGroup):
        inner = error.exceptions[0]
    said = _reason(inner) if inner is not None else ""
    return said or str(error) or type(error).__name__
