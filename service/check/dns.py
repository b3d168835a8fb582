"""The check of domains by DNS: whether a domain takes mail, as RFC 5321 section 5.1 says.

MX records, else an address record; a null MX (RFC 7505) takes none. Only what DNS says for certain
is a verdict: a time-out, a server that fails or makes no sense leaves the domain unknown.
"""

import logging
from collections.abc import Sequence

import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.nameserver
import dns.rdata
import dns.rdatatype
import dns.resolver
import trio
from dns.rdtypes.ANY.MX import MX

from service.api_client import quote
from service.model import AddressVerdict
from service.outbound import refuse_inside_transaction
from service.settings import Settings

log = logging.getLogger(__name__)

MAX_RECORDS = 10  # kept as evidence
ATTEMPT_SECONDS = 2.0  # per server; a packet may be lost
ATTEMPTS = 3  # at least so many, however short the time
NO_SERVERS_PAUSE_SECONDS = 60


class _NotRecursive(Exception):
    """The server knows its own domains only: what it does not find may exist."""


class DnsCheck:
    """Asks the servers of ENRICH_DNS_SERVERS, else those of the system. A `DomainCheck`."""

    def __init__(self, settings: Settings, resolv_conf: str = "/etc/resolv.conf") -> None:
        self._servers = settings.dns_servers
        self._timeout_seconds = settings.enrich_timeout_seconds
        self._resolv_conf = resolv_conf
        self._resolver: dns.asyncresolver.Resolver | None = None
        self._look_again_at = 0.0
        self._is_lack_told = False

    @property
    def pause_seconds(self) -> float:
        """Until it looks again for servers to ask, where it found none."""
        return max(0.0, self._look_again_at - trio.current_time())

    async def check(self, domain: str) -> AddressVerdict:
        """Whether the domain takes mail; unknown after ENRICH_TIMEOUT_SECONDS."""
        refuse_inside_transaction("a DNS query")
        try:
            name = dns.name.from_text(domain)  # absolute: no suffix of the system is tried
        except (dns.exception.DNSException, UnicodeError) as error:
            said = quote(f"no domain can have this name: {error}")
            return AddressVerdict("invalid", "no_such_domain", said, was_asked=False)
        resolver = self._find_resolver()
        if resolver is None:
            said = "there is no DNS server to ask; ENRICH_DNS_SERVERS can name one"
            return AddressVerdict(
                "unknown",
                "dns_failure",
                said,
                retry_after_seconds=self.pause_seconds,
                was_asked=False,
            )
        with trio.move_on_after(self._timeout_seconds):
            return await self._ask(resolver, name)
        return self._too_slow()

    async def _ask(
        self, resolver: dns.asyncresolver.Resolver, name: dns.name.Name
    ) -> AddressVerdict:
        try:
            return await _decide(resolver, name)
        except dns.resolver.NXDOMAIN as error:
            responses = error.responses()  # type: ignore[no-untyped-call]
            if not all(map(_is_of_use, responses.values())):
                return _not_recursive()
            return AddressVerdict("invalid", "no_such_domain", "the domain does not exist")
        except dns.resolver.LifetimeTimeout:
            return self._too_slow()
        except _NotRecursive:
            return _not_recursive()
        except dns.exception.DNSException as error:
            return AddressVerdict(
                "unknown", "dns_failure", quote(str(error) or type(error).__name__)
            )

    def _too_slow(self) -> AddressVerdict:
        said = f"no DNS server answered within {self._timeout_seconds:g} s"
        return AddressVerdict("unknown", "dns_timeout", said)

    def _find_resolver(self) -> dns.asyncresolver.Resolver | None:
        if self._resolver is None and not self.pause_seconds:
            self._resolver = self._create_resolver()
        return self._resolver

    def _create_resolver(self) -> dns.asyncresolver.Resolver | None:
        """None where the system names no server; it may do so later."""
        try:
            resolver = dns.asyncresolver.Resolver(self._resolv_conf, configure=not self._servers)
        except (dns.exception.DNSException, ValueError) as error:
            self._look_again_at = trio.current_time() + NO_SERVERS_PAUSE_SECONDS
            if not self._is_lack_told:
                log.warning("no DNS server to ask: %s; ENRICH_DNS_SERVERS can name one", error)
                self._is_lack_told = True
            return None
        if self._servers:
            resolver.nameservers = [dns.nameserver.Do53Nameserver(*one) for one in self._servers]
        resolver.lifetime = self._timeout_seconds
        resolver.timeout = min(ATTEMPT_SECONDS, self._timeout_seconds / ATTEMPTS)
        return resolver


async def _decide(resolver: dns.asyncresolver.Resolver, name: dns.name.Name) -> AddressVerdict:
    records = await _resolve(resolver, name, dns.rdatatype.MX)
    if records:
        return _decide_mx([one for one in records if isinstance(one, MX)])
    for kind in (dns.rdatatype.A, dns.rdatatype.AAAA):
        records = await _resolve(resolver, name, kind)
        if records:
            evidence = {"addresses": [one.to_text() for one in records[:MAX_RECORDS]]}
            said = "the domain names no mail server, but has an address, which stands for one"
            return AddressVerdict("valid", "address_record", said, evidence)
    return AddressVerdict("invalid", "no_mail_server", "the domain has neither MX nor an address")


def _decide_mx(records: Sequence[MX]) -> AddressVerdict:
    hosts = [
        f"{one.preference} {one.exchange.to_text(omit_final_dot=True)}"
        for one in sorted(records, key=lambda one: (one.preference, one.exchange))
        if one.exchange != dns.name.root
    ]
    if not hosts:
        return AddressVerdict("invalid", "null_mx", "the domain says that it takes no mail")
    said = "the domain names its mail servers"
    return AddressVerdict("valid", "mx", said, {"mx": hosts[:MAX_RECORDS]})


def _not_recursive() -> AddressVerdict:
    said = "the DNS server knows its own domains only (look at ENRICH_DNS_SERVERS)"
    return AddressVerdict("unknown", "dns_failure", said)


def _is_of_use(response: dns.message.Message) -> bool:
    """Whether the server asks others, or is the one who knows: then what it lacks is lacking."""
    return bool(response.flags & (dns.flags.RA | dns.flags.AA))


async def _resolve(
    resolver: dns.asyncresolver.Resolver, name: dns.name.Name, kind: dns.rdatatype.RdataType
) -> Sequence[dns.rdata.Rdata]:
    """The records of that kind, aliases followed; an answer without any has to be of use too."""
    answer = await resolver.resolve(name, kind, raise_on_no_answer=False)
    if answer.rrset is None and not _is_of_use(answer.response):
        raise _NotRecursive
    return list(answer.rrset or ())
