"""A check of domains that answers what a script says, and keeps what it was asked."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import trio

from service.model import AddressVerdict
from service.outbound import refuse_inside_transaction

VALID = AddressVerdict("valid", "mx", "takes mail", {"mx": ["10 mx.example.com"]})
INVALID = AddressVerdict("invalid", "no_such_domain", "there is no such domain")
UNKNOWN = AddressVerdict("unknown", "dns_timeout", "no answer within 5 s")
DOWN = AddressVerdict(
    "unknown", "api_down", "the API is down", retry_after_seconds=300, was_asked=False
)


async def _at_once(_domain: str) -> None:
    await trio.lowlevel.checkpoint()


@dataclass
class ScriptedCheck:
    """`verdicts` by domain, VALID for all others; `before` is awaited ahead of each answer."""

    verdicts: Mapping[str, AddressVerdict] = field(default_factory=dict)
    before: Callable[[str], Awaitable[None]] = _at_once
    pause_seconds: float = 0
    asked: Counter[str] = field(default_factory=Counter)
    asking: int = 0
    most_at_once: int = 0

    async def check(self, domain: str) -> AddressVerdict:
        refuse_inside_transaction("the scripted check")
        self.asked[domain] += 1
        self.asking += 1
        self.most_at_once = max(self.most_at_once, self.asking)
        try:
            await self.before(domain)
        finally:
            self.asking -= 1
        return self.verdicts.get(domain, VALID)
