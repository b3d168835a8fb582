"""Waiting for messages: the cap, the clamp, and rounds that the waiters of a mailbox share.

One connection per mailbox and interval, whatever the number of waiters, and none in between. A
waiter never waits for a round: its deadline, its client's leaving and the service's stop end it
whatever the mail server does. Trouble that may pass is kept for the diagnosis and tried again;
refused credentials answer everybody at once.
"""

import logging
import math
from collections.abc import Sequence

import trio

from service import metrics
from service.db.mailboxes import Access
from service.errors import (
    CredentialsRefused,
    MailboxThrottled,
    MailError,
    MailroomError,
    ServiceStopping,
    TooManyWaits,
)
from service.mail.lookup import Lookup, Pages
from service.mail.source import Finding, MailSource
from service.model import Cursor, Query
from service.opener import MailboxOpener
from service.settings import Settings
from service.waiters import Found, Look, Place, Waiter

log = logging.getLogger(__name__)

MAX_TIMEOUT_SECONDS = 120


class Waits:
    """All waiters of the process; `run` has to run beside them."""

    def __init__(self, opener: MailboxOpener, settings: Settings, stopping: trio.Event) -> None:
        self._opener = opener
        self._settings = settings
        self._stopping = stopping
        self._slots = trio.CapacityLimiter(settings.await_max_concurrent_waits)
        self._watches: dict[int, _Watch] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the rounds until the service stops; then everybody is answered."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await self._stopping.wait()
            for watch in self._watches.values():
                watch.answer_all(ServiceStopping("this replica is being stopped"))
            nursery.cancel_scope.cancel()

    async def wait(self, access: Access, query: Query, timeout_seconds: float) -> Waiter:
        """Wait for a match; the waiter's `outcome` is what was found, None without a match in time.

        A time-out of 0 is one look, for which the server has its usual time. TooManyWaits at once
        when no slot is free, ServiceStopping, CredentialsRefused.
        """
        patience_seconds = timeout_seconds or self._settings.imap_timeout_seconds
        deadline = trio.current_time() + min(patience_seconds, MAX_TIMEOUT_SECONDS)
        waiter = Waiter(query, deadline, is_single_look=timeout_seconds == 0)
        watch, began = self._enter(waiter, access), trio.current_time()
        try:
            with trio.move_on_at(deadline):
                await waiter.answered.wait()
        finally:
            watch.leave(waiter)
            self._slots.release_on_behalf_of(waiter)
            metrics.WAITS_IN_FLIGHT.dec()
            metrics.WAITS.labels(_outcome(waiter)).inc()
            metrics.WAIT_SECONDS.observe(trio.current_time() - began)
        if isinstance(waiter.outcome, Exception):
            raise waiter.outcome
        return waiter

    def refuse_if_full(self) -> None:
        """TooManyWaits or ServiceStopping when nobody can begin to wait now."""
        if self._stopping.is_set():
            metrics.WAITS.labels("ServiceStopping").inc()
            raise ServiceStopping("this replica is being stopped")
        if self._slots.available_tokens < 1:
            metrics.WAITS.labels("TooManyWaits").inc()
            raise TooManyWaits(
                f"{self._slots.total_tokens:g} clients are waiting already, the most that this "
                "replica takes"
            )

    def _enter(self, waiter: Waiter, access: Access) -> "_Watch":
        """Nothing is awaited between the look for a free slot and its taking."""
        self.refuse_if_full()
        watch = self._watch(access)
        self._slots.acquire_on_behalf_of_nowait(waiter)
        metrics.WAITS_IN_FLIGHT.inc()
        watch.join(waiter)
        return watch

    def _watch(self, access: Access) -> "_Watch":
        watch = self._watches.get(access.mailbox_id)
        if watch is None:
            assert self._nursery is not None  # noqa: S101
            watch = _Watch(self._opener, self._settings, self._nursery)
            self._watches[access.mailbox_id] = watch
        watch.access = access  # a password may have changed since the last one came
        return watch


def _outcome(waiter: Waiter) -> str:
    if isinstance(waiter.outcome, Exception):
        return type(waiter.outcome).__name__
    if waiter.outcome is not None:
        return "found"
    is_over = waiter.answered.is_set() or trio.current_time() >= waiter.deadline
    return "timeout" if is_over else "disconnected"


class _Watch:
    """The rounds against one mailbox, for as long as somebody waits."""

    access: Access

    def __init__(self, opener: MailboxOpener, settings: Settings, nursery: trio.Nursery) -> None:
        self._opener = opener
        self._interval_seconds = settings.await_poll_interval_seconds
        self._limits = settings.limits
        self._nursery = nursery
        self._waiters: dict[Waiter, None] = {}
        self._newcomers: dict[Waiter, None] = {}
        self._place = Place()
        self._changed = trio.Event()
        self._round = trio.CancelScope()
        self._is_running = False
        self._due = -math.inf
        self._not_before = -math.inf  # what the server asked for, when it pleaded its load
        self._last_error: str | None = None

    def join(self, waiter: Waiter) -> None:
        """Take part in the rounds that begin from now on."""
        waiter.last_error = self._last_error
        self._waiters[waiter] = self._newcomers[waiter] = None
        if self._is_urgent(waiter):
            self._due = self._not_before
        self._changed.set()
        if not self._is_running:
            self._is_running = True
            self._nursery.start_soon(self._run, name=f"watch {self.access.address}")

    def leave(self, waiter: Waiter) -> None:
        """Take part no longer; a round for nobody is broken off."""
        del self._waiters[waiter]
        self._newcomers.pop(waiter, None)
        if not self._waiters:
            self._round.cancel()
            self._changed.set()

    def answer_all(self, outcome: MailroomError) -> None:
        """The same answer for everybody who waits here."""
        for waiter in self._waiters:
            waiter.answer(outcome)

    def _is_urgent(self, waiter: Waiter) -> bool:
        """A first look that cannot wait for the next round."""
        return not waiter.took_part and (waiter.is_single_look or waiter.deadline <= self._due)

    async def _run(self) -> None:
        while self._waiters:
            if trio.current_time() >= self._due:
                await self._hold_round()
            else:
                self._changed = trio.Event()
                with trio.move_on_at(self._due):
                    await self._changed.wait()
        self._is_running = False

    async def _hold_round(self) -> None:
        waiters, newcomers = list(self._waiters), list(self._newcomers)
        with metrics.ROUND_SECONDS.time():
            try:
                await self._look(waiters, newcomers)
            except MailError as error:
                self._note(error)
                outcome = type(error).__name__
            except Exception as error:
                log.exception("%s: a round failed; the next one follows", self.access.address)
                self._note(error)
                outcome = "crash"
            else:
                self._last_error = None
                is_whole = all(waiter.outcome for waiter in waiters)
                outcome = "ok" if is_whole or not self._round.cancel_called else "broken_off"
        metrics.ROUNDS.labels(outcome).inc()
        self._due = max(trio.current_time() + self._interval_seconds, self._not_before)
        for waiter in newcomers:
            waiter.took_part = True
            if waiter.is_single_look:
                waiter.answered.set()
        if any(map(self._is_urgent, self._newcomers)):
            self._due = self._not_before

    def _note(self, error: Exception) -> None:
        """Refused credentials end all waits; with other trouble the next round may succeed."""
        self._last_error = str(error) or type(error).__name__
        if isinstance(error, MailboxThrottled) and error.retry_after_seconds is not None:
            self._not_before = trio.current_time() + error.retry_after_seconds
        for waiter in self._waiters:
            waiter.last_error = self._last_error
            if isinstance(error, CredentialsRefused):
                waiter.answer(error)

    async def _look(self, waiters: Sequence[Waiter], newcomers: Sequence[Waiter]) -> None:
        with trio.CancelScope() as self._round:
            async with self._opener.look(self.access) as source:
                await self._look_over(source, waiters, newcomers)

    async def _look_over(
        self, source: MailSource, waiters: Sequence[Waiter], newcomers: Sequence[Waiter]
    ) -> None:
        seen = self._place.seen
        finding = await self._find(source, waiters, newcomers)
        reading = _Reading(Lookup(source, self._limits), finding)
        if newcomers or await reading.has_news(seen):
            await reading.show_all(waiters)
        self._place.advance(finding.cursor)
        for waiter in newcomers:
            waiter.searched = finding.searched
            waiter.follow(self._place)
            self._newcomers.pop(waiter, None)

    async def _find(
        self, source: MailSource, waiters: Sequence[Waiter], newcomers: Sequence[Waiter]
    ) -> Finding:
        """What is new for those who have looked, and what newcomers may want.

        Where the place means nothing any more all are newcomers.
        """
        seen = self._place.seen
        queries = {waiter.query for waiter in newcomers}
        if len(newcomers) == len(waiters):
            return await source.look_up(list(queries), newest_will_do=True)
        finding = await source.look_up([*queries, Query(after=seen)], newest_will_do=True)
        if seen is None or finding.knows(seen):
            return finding
        all_queries = {waiter.query for waiter in waiters}
        return await source.look_up(list(all_queries), newest_will_do=True)


class _Reading:
    """Shows the messages of a finding to those who look, and hands out what they take."""

    def __init__(self, lookup: Lookup, finding: Finding) -> None:
        self._lookup = lookup
        self._finding = finding

    async def has_news(self, seen: Cursor | None) -> bool:
        """Whether there is anything for those who have seen so much."""
        if seen is None or not self._finding.knows(seen):
            return True
        return bool(await self._finding.walk(newest_first=True, after=seen).next_page(1))

    async def show_all(self, waiters: Sequence[Waiter]) -> None:
        """Newcomers last: what they look back at may be long."""
        finding = self._finding
        newest_first = [one for one in waiters if not one.query.is_earliest_first]
        earliest_first = [one for one in waiters if one.query.is_earliest_first]
        following = [one for one in earliest_first if one.has_looked(finding)]
        looking_back = [one for one in earliest_first if not one.has_looked(finding)]
        looks = [Look(group, finding) for group in (following, newest_first, looking_back)]
        for look, is_newest_first in zip(looks, (False, True, False), strict=True):
            await self._show(look, newest_first=is_newest_first)
        for look in looks:
            look.conclude(self._lookup.unreadable)

    async def _show(self, look: Look, *, newest_first: bool) -> None:
        """All messages in this order, until everybody has one."""
        if look.is_over:
            return
        pages = Pages(self._finding.walk(newest_first=newest_first, after=look.after))
        while not look.is_over and (page := await pages.next()):
            wanted = [ref for ref in page if look.wants(ref)]
            for candidate in await self._lookup.candidates(wanted):
                await trio.lowlevel.checkpoint()  # many waiters take their time
                if takers := look.show(candidate.envelope):
                    cursor = self._finding.cursor_behind(
                        candidate.ref, candidate.envelope.received_at
                    )
                    for message in await self._lookup.messages([candidate]):
                        look.give(takers, Found(message, cursor))
