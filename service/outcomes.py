"""Writing what became of claims, several in one statement when they come close together.

Whoever finds nobody writing writes what waits; who comes meanwhile waits for the next time. A
database that is away is waited for. With a webhook the events are part of the same transaction.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import trio

from service.db.attachments import Outcome, lock_requests, write_outcomes
from service.db.outbox import announce_completed
from service.db.pool import REJECTED_ERRORS, Database
from service.errors import DatabaseUnreachable

log = logging.getLogger(__name__)

DATABASE_PAUSE_SECONDS = 1
# What is written in one statement, unless a single result is larger: PostgreSQL's time is limited.
MAX_STATEMENT_CHARS = 8 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Ticket:
    """An outcome in the queue; `is_ours` is known once it is written."""

    outcome: Outcome
    is_ours: bool | None = None


class OutcomeWriter:
    """One for the process; `announces`: there is a webhook to tell of completed requests."""

    def __init__(self, db: Database, *, announces: bool) -> None:
        self._db = db
        self._announces = announces
        self._waiting: list[_Ticket] = []
        self._writing = trio.Lock()

    async def write(self, outcome: Outcome) -> bool:
        """Write it, however long it takes; False when the claim was lost."""
        ticket = _Ticket(outcome)
        self._waiting.append(ticket)
        try:
            async with self._writing:
                while ticket.is_ours is None:
                    await self._write_waiting()
        finally:
            if ticket in self._waiting:  # cancelled
                self._waiting.remove(ticket)
        return bool(ticket.is_ours)

    async def _write_waiting(self) -> None:
        sizes = accumulate(len(ticket.outcome.result or "") for ticket in self._waiting)
        count = max(1, sum(size <= MAX_STATEMENT_CHARS for size in sizes))
        tickets, self._waiting = self._waiting[:count], self._waiting[count:]
        try:
            written = await self._write_all([ticket.outcome for ticket in tickets])
        except BaseException:
            self._waiting = tickets + self._waiting
            raise
        for ticket in tickets:
            ticket.is_ours = ticket.outcome.claim.id in written

    async def _write_all(self, outcomes: Sequence[Outcome]) -> Collection[int]:
        """Together; where PostgreSQL will not have one of them, one by one."""
        try:
            return await self._write_when_reachable(outcomes)
        except REJECTED_ERRORS as error:
            if len(outcomes) > 1:
                return {id_ for one in outcomes for id_ in await self._write_all([one])}
            if outcomes[0].result is None:
                raise
            reason = f"damaged: what was read from it cannot be stored: {error}"
            failed = replace(outcomes[0], status="failed", result=None, error=reason)
            return await self._write_when_reachable([failed])

    async def _write_when_reachable(self, outcomes: Sequence[Outcome]) -> Collection[int]:
        while True:
            try:
                return await self._write_once(outcomes)
            except DatabaseUnreachable as error:
                log.warning("%d outcomes to write: %s; trying again", len(outcomes), error)
                await trio.sleep(DATABASE_PAUSE_SECONDS)

    async def _write_once(self, outcomes: Sequence[Outcome]) -> Collection[int]:
        if not self._announces:
            return await write_outcomes(self._db, outcomes)
        request_ids = sorted({one.claim.request_id for one in outcomes})
        async with self._db.transaction() as conn:
            await lock_requests(conn, request_ids)
            written = await write_outcomes(conn, outcomes)
            await announce_completed(conn, _ended_requests(outcomes, written))
        return written


def _ended_requests(outcomes: Sequence[Outcome], written: Collection[int]) -> list[int]:
    """The requests that one of these may have completed."""
    ended = (one for one in outcomes if one.status != "pending" and one.claim.id in written)
    return sorted({one.claim.request_id for one in ended})
