"""Writing what became of claims, several in one statement when they come close together.

Whoever finds nobody writing writes what waits; who comes meanwhile waits for the next time. What
PostgreSQL cannot write now is written later, and keeps nobody else waiting. With a webhook the
events are part of the same transaction.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import trio

from service.db.attachments import Outcome, lock_requests, write_outcomes
from service.db.outbox import announce_completed
from service.db.pool import REJECTED_ERRORS, Database
from service.errors import DatabaseBusy, DatabaseUnreachable

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
            while ticket.is_ours is None:
                async with self._writing:
                    is_well = ticket.is_ours is not None or await self._write_waiting()
                if not is_well:
                    await trio.sleep(DATABASE_PAUSE_SECONDS)
        finally:
            if ticket in self._waiting:  # cancelled
                self._waiting.remove(ticket)
        return ticket.is_ours

    async def _write_waiting(self) -> bool:
        """Write as much of the queue as goes into one statement; whether all of that was written.

        What was not stays in the queue.
        """
        sizes = accumulate(len(ticket.outcome.result or "") for ticket in self._waiting)
        count = max(1, sum(size <= MAX_STATEMENT_CHARS for size in sizes))
        tickets, self._waiting = self._waiting[:count], self._waiting[count:]
        try:
            await self._write(tickets)
        finally:
            left = [ticket for ticket in tickets if ticket.is_ours is None]
            self._waiting += left
        return not left

    async def _write(self, tickets: Sequence[_Ticket]) -> None:
        """Together; where PostgreSQL has something against one of them, one by one."""
        try:
            written = await self._write_once([ticket.outcome for ticket in tickets])
        except Exception as error:
            if isinstance(error, DatabaseUnreachable) and not isinstance(error, DatabaseBusy):
                log.warning("%d outcomes to write: %s; trying again", len(tickets), error)
            elif len(tickets) > 1:
                for ticket in tickets:
                    await self._write([ticket])
            else:
                await self._write_otherwise(tickets[0], error)
        else:
            for ticket in tickets:
                ticket.is_ours = ticket.outcome.claim.id in written

    async def _write_otherwise(self, ticket: _Ticket, error: Exception) -> None:
        """A result that cannot be stored is a failure; what nobody expected is for the watchdog."""
        attachment_id = ticket.outcome.claim.id
        if isinstance(error, DatabaseBusy):
            log.warning("attachment %s: %s; trying again", attachment_id, error)
        elif isinstance(error, REJECTED_ERRORS) and ticket.outcome.result is not None:
            reason = f"damaged: what was read from it cannot be stored: {error}"
            ticket.outcome = replace(ticket.outcome, status="failed", result=None, error=reason)
            await self._write([ticket])
        else:
            log.error("attachment %s: cannot be written", attachment_id, exc_info=error)
            ticket.is_ours = False

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
