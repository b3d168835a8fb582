"""Rule 1, commit before I/O, as one small mechanism.

`db.pool` marks the context in which a database connection is held. Every outbound client calls
`refuse_inside_transaction` before it starts; an audit hook of Python's is the net below them, for
what has no such client. The mark is a context variable: it travels into nested calls, task groups
and Trio's threads, so none of them is a way around it, and it ends with the block wherever it went.
Not seen: threads that are given no context (those of a `ThreadPoolExecutor`), what libraries in C
do by themselves (libpq), and bytes that go over a connection from before (httpx, a pipe).
"""

import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from service.errors import IOInsideTransaction

# What a library cannot do without one of these: resolve, connect, send a datagram, start a process;
# and, where the standard library tells of it, speak over a connection that it has already. With the
# argument that says to whom.
_OUTBOUND_EVENTS = {
    "socket.connect": 1,
    "socket.sendto": 1,
    "socket.sendmsg": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
    "socket.gethostbyaddr": 0,
    "socket.getnameinfo": 0,
    "subprocess.Popen": 0,
    "os.posix_spawn": 0,
    "os.system": None,
    "os.fork": None,
    "os.forkpty": None,
    "http.client.send": None,
    "smtplib.send": None,
    "imaplib.send": None,
    "poplib.putline": None,
    "ftplib.sendcmd": None,
}
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen ")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_OWN_FOLDER = str(Path(__file__).parent)


class Place(NamedTuple):
    """Where in the code something was asked for."""

    at: str  # file:line
    function: str  # module:name


@dataclass(eq=False, slots=True)
class _Mark:
    """One held connection. Contexts keep it longer than it counts: every task copies them."""

    place: str
    outer: "_Mark | None"
    is_held: bool = True


_newest_mark: ContextVar[_Mark | None] = ContextVar("held_database_connection", default=None)
_is_database: ContextVar[bool] = ContextVar("is_the_database_itself", default=False)


@contextmanager
def holding_connection(place: str) -> Iterator[None]:
    """Mark the block as one that holds a database connection, opened at `place` (file:line)."""
    mark = _Mark(place, _find_held())
    _newest_mark.set(mark)
    try:
        yield
    finally:
        mark.is_held = False  # not a reset: the block may end in another context


# The default is bound now: at the interpreter's end, when the hook still asks, modules are empty.
def _find_held(newest: ContextVar[_Mark | None] = _newest_mark) -> _Mark | None:
    mark = newest.get()
    while mark is not None and not mark.is_held:
        mark = mark.outer
    return mark


def refuse_inside_transaction(call: str) -> None:
    """Raise `IOInsideTransaction` if this context holds a database connection."""
    mark = _find_held()
    if mark is not None:
        # A thread may run nothing but a library.
        here = find_place(_is_guard_or_library, default=find_place(_is_guard))
        raise IOInsideTransaction(
            f"{call} may not start at {here.at} "
            f"while the database connection taken at {mark.place} is held",
            hint="commit first, do the I/O, and write the result in a new short transaction",
        )


@cache  # a hook stays for as long as the process
def guard_libraries() -> None:
    """From now on outbound calls of any library are refused like those of our clients."""
    # Bound here for the same reason.
    events, find_held = _OUTBOUND_EVENTS, _find_held

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event in events and find_held() is not None and not _may_pass(args):
            position = events[event]
            whom = "" if position is None else f" of {args[position]!r}"
            refuse_inside_transaction(event + whom)

    sys.addaudithook(refuse)


def _may_pass(args: tuple[Any, ...]) -> bool:
    """The database's own, and datagrams to this machine: lines go into syslog and journal so."""
    if _is_database.get():
        return True
    one = args[0] if args else None
    return (
        isinstance(one, socket.socket)
        and one.family == socket.AF_UNIX
        and one.type == socket.SOCK_DGRAM
    )


@contextmanager
def as_database_itself() -> Iterator[None]:
    """The block reaches for the database, which the net lets pass whatever is held."""
    token = _is_database.set(True)
    try:
        yield
    finally:
        _is_database.reset(token)


UNKNOWN_PLACE = Place("an unknown place", "unknown")


def find_place(is_skipped: Callable[[str], bool], default: Place = UNKNOWN_PLACE) -> Place:
    """The innermost place on the caller's stack whose file is not skipped."""
    frame = sys._getframe(1)
    code = frame.f_code
    while is_skipped(code.co_filename):
        if frame.f_back is None:
            return default
        frame = frame.f_back
        code = frame.f_code
    name = code.co_qualname.replace("<locals>.", "")
    return Place(
        f"{code.co_filename}:{frame.f_lineno}", f"{frame.f_globals.get('__name__')}:{name}"
    )


def _is_guard(file: str) -> bool:
    return file == __file__


def _is_guard_or_library(file: str) -> bool:
    if file.startswith(_OWN_FOLDER):
        return _is_guard(file)
    return file.startswith(_LIBRARIES) or any(folder in file for folder in _PACKAGE_FOLDERS)
