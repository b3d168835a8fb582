"""Domain checks against servers of the test, and what they leave behind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
from prometheus_client import REGISTRY

from service.check.api import ApiCheck, Patience, open_api_check
from service.check.domain_check import DomainCheck, open_domain_check
from service.model import AddressVerdict
from service.settings import Settings
from tests.check.scripted_dns import ScriptedDns
from tests.scripted_http import Reply, ScriptedHttp

API_KEY = "key-test-4f/9e+a0"
HASTY = Patience(
    max_wait_seconds=3,
    first_pause_seconds=0.05,
    max_pause_seconds=0.4,
    max_failures=3,
    first_open_seconds=0.2,
    max_open_seconds=0.6,
)


def says(verdict: object = "valid", reason: object = None, **more: Any) -> Reply:
    """A 200 as the documentation describes it."""
    return Reply.json({"verdict": verdict, "reason": reason}, **more)


@asynccontextmanager
async def asking_dns(
    *servers: ScriptedDns, timeout_seconds: float = 5
) -> AsyncIterator[DomainCheck]:
    """The check by DNS, with these as its servers."""
    settings = Settings(
        enrich_dns_servers=",".join(server.address for server in servers),
        enrich_timeout_seconds=timeout_seconds,
    )
    async with open_domain_check(settings) as check:
        yield check


async def ask_dns(
    *servers: ScriptedDns, domain: str = "example.com", timeout_seconds: float = 5
) -> AddressVerdict:
    """The verdict on one domain."""
    async with asking_dns(*servers, timeout_seconds=timeout_seconds) as check:
        return await check.check(domain)


def api_settings(url: str, **more: Any) -> Settings:
    """Settings with the API at that URL, and a key."""
    fields = {"enrich_api_url": f"{url}/v1/check", "enrich_api_key": API_KEY}
    return Settings(**{**fields, **more})


@asynccontextmanager
async def asking_api(
    server: ScriptedHttp, patience: Patience = HASTY, **settings: Any
) -> AsyncIterator[ApiCheck]:
    """The check by the API that the server is."""
    async with open_api_check(api_settings(server.url, **settings), patience) as check:
        yield check


async def ask_api(server: ScriptedHttp, **settings: Any) -> AddressVerdict:
    """The verdict on one domain."""
    async with asking_api(server, **settings) as check:
        return await check.check("example.com")


def open_sockets() -> set[int]:
    """The file descriptors of this process that are sockets."""
    return {one.fd for one in psutil.Process().net_connections("inet")}


def counted(name: str, **labels: str) -> float:
    """What a metric says now."""
    return REGISTRY.get_sample_value(f"mailroom_{name}", labels) or 0
