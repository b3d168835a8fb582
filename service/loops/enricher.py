"""The enricher: claims batches of rows and checks their e-mail addresses, several at a time.

A partition claims and commits, checks with no connection held, and writes all verdicts in one
statement under the claim's stamp. What could not be decided in time is given back; the rows of a
partition that dies are due again once their stamp is old.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from service import metrics
from service.check.address import Address, check_address
from service.check.domain_check import DomainCheck
from service.db.advertisements import (
    Batch,
    Decision,
    claim_batch,
    release_rows,
    write_decisions,
)
from service.db.pool import Database
from service.domains import MAX_RETRY_SECONDS, Domains
from service.errors import DatabaseUnreachable
from service.health import Health
from service.loops.claims import ClaimedWork
from service.loops.cycle import run_cycles
from service.model import AddressVerdict
from service.settings import Settings

log = logging.getLogger(__name__)

LOOK_SECONDS = 5
PATIENCE_SECONDS = 10
MAX_PAUSE_SECONDS = 60
SILENCE_SECONDS = 20  # PostgreSQL may take that long over a claim
DATABASE_PAUSE_SECONDS = 1
RELEASE_TIMEOUT_SECONDS = 1


class Enricher:
    """The loop around the check of addresses and domains."""

    def __init__(
        self, db: Database, settings: Settings, check: DomainCheck, health: Health
    ) -> None:
        self.decided = Counter[str]()  # rows that were written, by verdict
        self.failed = 0  # rows that could not be decided by a fault, PostgreSQL's or ours
        self._db = db
        self._check = check
        self._domains = Domains(db, settings, check, health.stopping)
        self._batch_size = settings.enrich_batch_size
        self._expires_after_seconds = settings.watchdog_stuck_after_seconds
        self._stopping = health.stopping
        self._heartbeat = health.add_heartbeat("enricher", SILENCE_SECONDS)
        self._partitions = ClaimedWork(
            "enricher",
            self._claim,
            self.enrich,
            slots=settings.enrich_partitions,
            stopping=health.stopping,
        )

    async def run(self) -> None:
        """Check until the service stops; then the batches under way come to their end."""
        async with trio.open_nursery() as nursery:

            async def cycle() -> float:
                await self.enrich_due_once(nursery)
                return LOOK_SECONDS

            await run_cycles(cycle, heartbeat=self._heartbeat, stopping=self._stopping)

    async def run_until_idle(self) -> None:
        """Check until nothing is due, or asking is of no use for longer than a short pause."""
        while self._check.pause_seconds <= MAX_PAUSE_SECONDS and not self._stopping.is_set():
            await trio.sleep(self._check.pause_seconds)
            async with trio.open_nursery() as nursery:
                claimed = await self.enrich_due_once(nursery)
            if not claimed and not self._check.pause_seconds:
                break

    async def enrich_due_once(self, nursery: trio.Nursery) -> int:
        """Claim until nothing is due or asking is of no use now, each batch in `nursery`.

        Returns how many batches were claimed.
        """
        claimed = 0
        while started := await self._partitions.start(nursery, patience_seconds=PATIENCE_SECONDS):
            claimed += started
            self._heartbeat.beat()
        return claimed

    async def enrich(self, batch: Batch) -> None:
        """Decide each row of the batch, or give it back."""
        try:
            # A claim is not to expire before its verdicts are written.
            decisions = await self._check_all(batch, within_seconds=self._expires_after_seconds / 2)
            with trio.move_on_after(self._expires_after_seconds / 4):
                await self._write(batch, decisions)
                undecided = batch.emails.keys() - {one.row_id for one in decisions}
                await release_rows(self._db, batch, undecided)
        except* Exception:
            self.failed += len(batch.emails)
            raise
        except* trio.Cancelled:  # in a group, where domains were being asked
            with trio.move_on_after(RELEASE_TIMEOUT_SECONDS, shield=True):
                with suppress(DatabaseUnreachable):
                    await release_rows(self._db, batch, batch.emails)
            raise

    async def _claim(self, _free: int) -> Sequence[Batch]:
        """One batch for one partition, unless asking is of no use now."""
        if self._check.pause_seconds:
            return []
        batch = await claim_batch(
            self._db, self._batch_size, expires_after_seconds=self._expires_after_seconds
        )
        return [] if batch is None else [batch]

    async def _check_all(self, batch: Batch, *, within_seconds: float) -> list[Decision]:
        checked = {row_id: _check_offline(email) for row_id, email in batch.emails.items()}
        domains = {one.domain for one in checked.values() if isinstance(one, Address)}
        known = await self._domains.look_up(domains, within_seconds=within_seconds)
        verdicts = {row_id: _decide(found, known) for row_id, found in checked.items()}
        return [Decision(row_id, one) for row_id, one in verdicts.items() if one is not None]

    async def _write(self, batch: Batch, decisions: Sequence[Decision]) -> None:
        """However long PostgreSQL is away; a row that it refuses costs its neighbours nothing."""
        while decisions:
            try:
                written = await write_decisions(self._db, batch, decisions)
            except DatabaseUnreachable as error:
                log.warning("%d rows to decide: %s; trying again", len(decisions), error)
                await trio.sleep(DATABASE_PAUSE_SECONDS)
            except Exception:
                if len(decisions) == 1:  # it is due again when its claim is too old
                    log.exception("row %d cannot be decided", decisions[0].row_id)
                    self.failed += 1
                    break
                middle = len(decisions) // 2
                await self._write(batch, decisions[:middle])
                decisions = decisions[middle:]
            else:
                self._count(written)
                break

    def _count(self, written: Sequence[Decision]) -> None:
        for one in written:
            metrics.ENRICHED_ROWS.labels(one.verdict.verdict).inc()
            self.decided[one.verdict.verdict] += 1


def _check_offline(email: str | None) -> Address | AddressVerdict:
    """One bad address never stops the batch."""
    try:
        return check_address(email)
    except Exception:
        log.exception("the check of an address crashed")
        said = "the check of the address crashed"
        return AddressVerdict(
            "unknown", "check_crashed", said, retry_after_seconds=MAX_RETRY_SECONDS
        )


def _decide(
    found: Address | AddressVerdict, known: Mapping[str, AddressVerdict]
) -> AddressVerdict | None:
    """The verdict on an address; None when that on its domain could not be had in time."""
    if isinstance(found, AddressVerdict):
        return found
    verdict = known.get(found.domain)
    if verdict is None:
        return None
    role = {"role_account": True} if found.is_role else {}
    evidence = {"domain": found.domain, **verdict.evidence, **role}
    return AddressVerdict(
        verdict.verdict, verdict.reason, verdict.detail, evidence, verdict.retry_after_seconds
    )
