"""A DNS server that answers what a script says, over UDP and TCP on one loopback port.

The script is a function of the query and the transport: it gives the octets to answer with, or
None to say nothing. Every question is in `questions`, such as `("udp", "example.com MX")`.
"""

import socketserver
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Self

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

PORTS_TRIED = 50
Script = Callable[[dns.message.Message, str], bytes | None]
# Names without the last dot, each with its records by type: {"example.com": {"MX": ["10 mx."]}}
Zone = Mapping[str, Mapping[str, Sequence[str]]]


def question_of(query: dns.message.Message) -> tuple[str, str]:
    """Its name, without the last dot, and type."""
    question = query.question[0]
    return question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)


def respond(
    query: dns.message.Message,
    *rrsets: dns.rrset.RRset,
    rcode: dns.rcode.Rcode = dns.rcode.NOERROR,
    flags: int = dns.flags.RA,
) -> dns.message.Message:
    """The response of a recursive server."""
    response = dns.message.make_response(query)
    response.flags |= flags
    response.set_rcode(rcode)
    response.answer.extend(rrsets)
    return response


def serving(zone: Zone, *, flags: int = dns.flags.RA) -> Script:
    """A server that knows these names alone, and follows their aliases."""

    def answer(query: dns.message.Message, _transport: str) -> bytes:
        name, kind = question_of(query)
        rrsets = []
        while name in zone and kind not in zone[name] and "CNAME" in zone[name]:
            (target,) = zone[name]["CNAME"]
            rrsets.append(dns.rrset.from_text(f"{name}.", 300, "IN", "CNAME", target))
            name = target.removesuffix(".")
            if len(rrsets) > 20:
                break
        if kind in zone.get(name, {}):
            rrsets.append(dns.rrset.from_text(f"{name}.", 300, "IN", kind, *zone[name][kind]))
        rcode = dns.rcode.NOERROR if name in zone else dns.rcode.NXDOMAIN
        return respond(query, *rrsets, rcode=rcode, flags=flags).to_wire(max_size=65_535)

    return answer


def failing(rcode: dns.rcode.Rcode) -> Script:
    """A server that answers each question with this error."""
    return lambda query, _: respond(query, rcode=rcode).to_wire()


def silent(_query: dns.message.Message, _transport: str) -> None:
    """A server, or a firewall before it, that drops all packets."""


class ScriptedDns:
    """See the module; `address` is for the settings, as IP:PORT."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.questions: list[tuple[str, str]] = []
        self._udp, self._tcp = self._bind()
        self._servers = (self._udp, self._tcp)
        self.address = f"127.0.0.1:{self._udp.server_address[1]}"

    def answer(self, octets: bytes, transport: str) -> bytes | None:
        """What the script says to a query."""
        query = dns.message.from_wire(octets)
        self.questions.append((transport, " ".join(question_of(query))))
        return self._script(query, transport)

    def __enter__(self) -> Self:
        self._threads = [
            threading.Thread(target=server.serve_forever, args=(0.002,)) for server in self._servers
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()

    def _bind(self) -> tuple["_UdpServer", "_TcpServer"]:
        """Two servers on one port that is free for both."""
        for _ in range(PORTS_TRIED):
            tcp = _TcpServer(("127.0.0.1", 0), self._handler(_TcpHandler))
            try:
                return _UdpServer(tcp.server_address, self._handler(_UdpHandler)), tcp
            except OSError:
                tcp.server_close()
        raise OSError("no port is free for both UDP and TCP")

    def _handler(self, kind: "type[_Handler]") -> "type[_Handler]":
        return type(kind.__name__, (kind,), {"dns": self})


class _UdpServer(socketserver.ThreadingUDPServer):
    daemon_threads = False  # so that leaving it waits for them
    max_packet_size = 65_535


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = False
    request_queue_size = 128


class _Handler(socketserver.BaseRequestHandler):
    dns: ScriptedDns


class _UdpHandler(_Handler):
    def handle(self) -> None:
        octets, connection = self.request
        answer = self.dns.answer(octets, "udp")
        if answer is not None:
            connection.sendto(answer, self.client_address)


class _TcpHandler(_Handler):
    """Says nothing more after None, until the client ends the connection."""

    def handle(self) -> None:
        stream = self.request.makefile("rb")
        with stream, suppress(ConnectionError):
            (length,) = struct.unpack("!H", stream.read(2))
            answer = self.dns.answer(stream.read(length), "tcp")
            if answer is None:
                stream.read()
            else:
                self.request.sendall(struct.pack("!H", len(answer)) + answer)
