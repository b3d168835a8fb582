"""What a check of domains is, and which one the settings ask for."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from service import metrics
from service.check.api import open_api_check
from service.check.dns import DnsCheck
from service.errors import IOInsideTransaction
from service.model import AddressVerdict
from service.settings import Settings

log = logging.getLogger(__name__)


class DomainCheck(Protocol):
    """Says whether the mail of a domain can be delivered."""

    @property
    def pause_seconds(self) -> float:
        """For how long asking is of no use now; 0: ask."""

    async def check(self, domain: str) -> AddressVerdict:
        """The verdict on a domain in ASCII, unknown when none is to be had. IOInsideTransaction."""


class CountedCheck:
    """A `DomainCheck` around another: counts and times, and a crash is an unknown verdict."""

    def __init__(self, inner: DomainCheck) -> None:
        self._inner = inner

    @property
    def pause_seconds(self) -> float:
        """See `DomainCheck`."""
        return self._inner.pause_seconds

    async def check(self, domain: str) -> AddressVerdict:
        """See `DomainCheck`."""
        began = trio.current_time()
        verdict = await self._check(domain)
        if verdict.was_asked:
            metrics.DOMAIN_CHECK_SECONDS.observe(trio.current_time() - began)
        metrics.DOMAIN_CHECKS.labels(verdict.reason).inc()
        return verdict

    async def _check(self, domain: str) -> AddressVerdict:
        try:
            return await self._inner.check(domain)
        except IOInsideTransaction:
            raise
        except Exception:
            log.exception("the check of the domain %s crashed", domain)
            return AddressVerdict("unknown", "check_crashed", "the check of the domain crashed")


@asynccontextmanager
async def open_domain_check(settings: Settings) -> AsyncIterator[DomainCheck]:
    """The check by ENRICH_API_URL, without one by DNS. SettingsError."""
    if settings.enrich_api_url is None:
        yield CountedCheck(DnsCheck(settings))
        return
    async with open_api_check(settings) as api:
        yield CountedCheck(api)
