"""The check of domains by a validation API, where ENRICH_API_URL names one.

Owns the patience with it: it is left alone while it asks for that (429, or 503 with `Retry-After`)
and after failures in a row, by all partitions together. What goes wrong is an unknown verdict.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import trio

from service.api_client import ApiClient, ApiKey, NoAnswer, open_client, parse_url
from service.check.api_answer import (
    MAX_ANSWER_BYTES,
    WrongAnswer,
    is_throttling,
    read_answer,
    read_retry_after,
)
from service.check.breaker import Breaker, Call
from service.check.pause import Pause
from service.errors import SettingsError
from service.model import AddressVerdict
from service.outbound import refuse_inside_transaction
from service.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How much trouble the API may make, and how long it is then left alone."""

    max_asks: int = 5  # for one domain, when the API asks to come back later
    max_wait_seconds: float = 20  # in one check
    first_pause_seconds: float = 1
    max_pause_seconds: float = 60
    max_failures: int = 5  # in a row
    first_open_seconds: float = 10
    max_open_seconds: float = 300


PATIENCE = Patience()


class ApiCheck:
    """Asks one API; one for the process. A `DomainCheck`."""

    def __init__(self, api: ApiClient, url: httpx.URL, patience: Patience) -> None:
        self._api = api
        self._url = url
        self._name = str(url.copy_with(query=None))  # which may hold a token
        self._patience = patience
        self._breaker = Breaker(
            f"the validation API {self._name}",
            failures=patience.max_failures,
            first_open_seconds=patience.first_open_seconds,
            max_open_seconds=patience.max_open_seconds,
        )
        self._pause = Pause(
            first_seconds=patience.first_pause_seconds, max_seconds=patience.max_pause_seconds
        )
        self._is_refusal_told = False

    @property
    def pause_seconds(self) -> float:
        """For how long the API is to be left alone."""
        return max(self._pause.seconds, self._breaker.open_seconds)

    async def check(self, domain: str) -> AddressVerdict:
        """What the API says of the domain, or why it says nothing."""
        refuse_inside_transaction("a call to the validation API")
        give_up_at = trio.current_time() + self._patience.max_wait_seconds
        asked = 0
        while asked < self._patience.max_asks and await self._pause.wait(give_up_at):
            open_seconds = self._breaker.open_seconds
            if open_seconds:
                said = "the validation API is left alone after failures in a row"
                return _left_alone("api_down", said, open_seconds, was_asked=asked > 0)
            verdict = await self._ask(domain)
            if verdict is not None:
                return verdict
            asked += 1
        said = "the validation API asked to come back later"
        return _left_alone("api_throttled", said, self._pause.seconds, was_asked=asked > 0)

    async def _ask(self, domain: str) -> AddressVerdict | None:
        """None when it asked to come back later: the pause is set."""
        sent_at = trio.current_time()
        with self._breaker.call() as call:
            try:
                answer = await self._api.send(
                    "GET", self._url.copy_merge_params({"domain": domain})
                )
                if is_throttling(answer):
                    self._pause.throttle(sent_at, read_retry_after(answer))
                    return None
                self._pause.relax(sent_at)
                verdict = read_answer(answer, self._api.key)
            except NoAnswer as none:
                return self._failed(call, f"api_{none.outcome}", str(none))
            except WrongAnswer as wrong:
                return self._failed(call, wrong.reason, str(wrong))
            call.succeeded()
        self._is_refusal_told = False
        return verdict

    def _failed(self, call: Call, reason: str, said: str) -> AddressVerdict:
        if reason == "api_refused" and not self._is_refusal_told:
            log.warning("the validation API %s: %s", self._name, said)
            self._is_refusal_told = True
        call.failed(said)
        return AddressVerdict("unknown", reason, f"the validation API: {said}")


@asynccontextmanager
async def open_api_check(
    settings: Settings, patience: Patience = PATIENCE
) -> AsyncIterator[ApiCheck]:
    """The check by the API of ENRICH_API_URL. SettingsError."""
    if settings.enrich_api_url is None:
        raise SettingsError("ENRICH_API_URL: needed")
    key = ApiKey("ENRICH_API_KEY", settings.enrich_api_key)
    url = parse_url(settings.enrich_api_url, variable="ENRICH_API_URL", key_variable=key.variable)
    async with open_client(
        url,
        key,
        headers={"Accept": "application/json"},
        timeout_seconds=settings.enrich_timeout_seconds,
        concurrency=settings.enrich_concurrency,
        max_bytes=MAX_ANSWER_BYTES,
    ) as api:
        # With its last ask a check ends before the claim of its domain does.
        wait_seconds = min(patience.max_wait_seconds, 2 * settings.enrich_timeout_seconds)
        yield ApiCheck(api, url, replace(patience, max_wait_seconds=wait_seconds))


def _left_alone(
    reason: str, said: str, retry_after_seconds: float, *, was_asked: bool
) -> AddressVerdict:
    return AddressVerdict(
        "unknown", reason, said, retry_after_seconds=retry_after_seconds, was_asked=was_asked
    )
