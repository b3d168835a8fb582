"""Writing what became of claims, several in one statement when they come close together.

What PostgreSQL cannot write now is written later, and keeps nobody else waiting. With a webhook the
events are part of the same transaction.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate

from service.db.attachments import Outcome, lock_requests, write_outcomes
from service.db.driver_errors import REJECTED_ERRORS
from service.db.outbox import announce_completed
from service.db.pool import Database
from service.errors import DatabaseBusy, DatabaseUnreachable
from service.gathering import Gathering, Piece

log = logging.getLogger(__name__)

# What is written in one statement, unless a single result is larger: PostgreSQL's time is limited.
MAX_STATEMENT_CHARS = 8 * 1024 * 1024


class OutcomeWriter:
    """One for the process; `announces`: there is a webhook to tell of completed requests."""

    def __init__(self, db: Database, *, announces: bool) -> None:
        self._db = db
        self._announces = announces
        self._gathering = Gathering(self._write, take=_fit_together)

    async def write(self, outcome: Outcome) -> bool:
        """Write it, however long it takes; False when the claim was lost."""
        return await self._gathering.do(outcome)

    async def _write(self, pieces: Sequence[Piece[Outcome, bool]]) -> None:
        """Together; where PostgreSQL has something against one of them, one by one."""
        try:
            written = await self._write_once([piece.item for piece in pieces])
        except Exception as error:
            if isinstance(error, DatabaseUnreachable) and not isinstance(error, DatabaseBusy):
                log.warning("%d outcomes to write: %s; trying again", len(pieces), error)
            elif len(pieces) > 1:
                for piece in pieces:
                    await self._write([piece])
            else:
                await self._write_otherwise(pieces[0], error)
        else:
            for piece in pieces:
                piece.complete(piece.item.claim.id in written)

    async def _write_otherwise(self, piece: Piece[Outcome, bool], error: Exception) -> None:
        """A result that cannot be stored is a failure; what nobody expected is for the watchdog."""
        attachment_id = piece.item.claim.id
        if isinstance(error, DatabaseBusy):
            log.warning("attachment %s: %s; trying again", attachment_id, error)
        elif isinstance(error, REJECTED_ERRORS) and piece.item.result is not None:
            reason = f"damaged: what was read from it cannot be stored: {error}"
            piece.item = replace(piece.item, status="failed", result=None, error=reason)
            await self._write([piece])
        else:
            log.error("attachment %s: cannot be written", attachment_id, exc_info=error)
            piece.complete(False)

    async def _write_once(self, outcomes: Sequence[Outcome]) -> Collection[int]:
        if not self._announces:
            return await write_outcomes(self._db, outcomes)
        request_ids = sorted({one.claim.request_id for one in outcomes})
        async with self._db.transaction() as conn:
            await lock_requests(conn, request_ids)
            written = await write_outcomes(conn, outcomes)
            await announce_completed(conn, _ended_requests(outcomes, written))
        return written


def _fit_together(outcomes: Sequence[Outcome]) -> int:
    """How many go into one statement."""
    sizes = accumulate(len(outcome.result or "") for outcome in outcomes)
    return max(1, sum(size <= MAX_STATEMENT_CHARS for size in sizes))


def _ended_requests(outcomes: Sequence[Outcome], written: Collection[int]) -> list[int]:
    """The requests that one of these may have completed."""
    ended = (one for one in outcomes if one.status != "pending" and one.claim.id in written)
    return sorted({one.claim.request_id for one in ended})
