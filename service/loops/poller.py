"""The poller: claims due mailboxes and polls them side by side.

A cycle claims until nothing is due; the polls themselves go on beside the next cycles, each under
its own deadline, so that a slow mailbox delays no other. Failures are kept in the mailbox's row:
it backs off, keeps its error, and recovers by itself.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from service import metrics
from service.db.mailboxes import (
    Claim,
    claim_due,
    complete_poll,
    fail_poll,
    seconds_until_due,
)
from service.db.pool import Database
from service.errors import (
    ClaimLost,
    ConnectionLost,
    CredentialsRefused,
    DatabaseUnreachable,
    MailboxThrottled,
)
from service.health import Health
from service.intake import Outcome, Round
from service.loops.claims import ClaimedWork
from service.loops.cycle import run_cycles
from service.mail.source import ServerRef
from service.opener import MailboxOpener
from service.recovery import recover_stuck_requests
from service.settings import Settings

log = logging.getLogger(__name__)

MAX_BACKOFF_SECONDS = 3600
STUBBORN_AFTER_FAILURES = 3
MIN_PAUSE_SECONDS = 0.1  # a due row that another replica is just claiming is not ours to wait for


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed poll leaves in its mailbox's row."""

    failures: int
    state: str
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class PollReport:
    """How one poll ended: messages by outcome, and the error if there was one."""

    counts: Counter[str]
    error: Exception | None = None


def decide_failure(claim: Claim, error: Exception, *, progressed: bool) -> Failure:
    """Back-off doubles from the poll interval to an hour; progress starts it anew."""
    failures = 1 if progressed else claim.consecutive_failures + 1
    doubled_seconds = claim.poll_interval_seconds * 2.0 ** min(failures - 1, 20)
    delay_seconds = min(doubled_seconds, MAX_BACKOFF_SECONDS)
    if isinstance(error, CredentialsRefused):
        return Failure(failures, "needs_reauth", MAX_BACKOFF_SECONDS)
    if isinstance(error, MailboxThrottled) and error.retry_after_seconds is not None:
        delay_seconds = max(delay_seconds, error.retry_after_seconds)
    return Failure(failures, claim.state, delay_seconds)


class MailboxPoller:
    """Polls claimed mailboxes."""

    def __init__(self, db: Database, settings: Settings, opener: MailboxOpener) -> None:
        self._db = db
        self._settings = settings
        self._opener = opener

    async def poll(self, claim: Claim) -> PollReport:
        """One poll under its deadline, recorded in the mailbox's row.

        The deadline is never beyond the claim: when the mailbox is due again nobody is at it.
        """
        deadline_seconds = min(self._settings.poll_timeout_seconds, claim.poll_interval_seconds)
        with metrics.POLL_SECONDS.time():
            try:
                report = await self._poll(claim, deadline_seconds)
            except ClaimLost as lost:
                log.info("%s", lost)
                report = PollReport(Counter(), lost)
        metrics.POLLS.labels("ok" if report.error is None else type(report.error).__name__).inc()
        return report

    async def replay(self, claim: Claim, server_ref: ServerRef) -> Outcome:
        """Take one message of the quarantine again from the server: what became of it."""
        async with self._opener.open(claim) as source:
            round_ = Round(self._db, source, claim, self._settings)
            return await round_.replay(server_ref)

    async def _poll(self, claim: Claim, deadline_seconds: float) -> PollReport:
        round_: Round | None = None
        error: Exception | None = None
        with trio.move_on_after(deadline_seconds) as deadline:
            try:
                async with self._opener.open(claim) as source:
                    round_ = Round(self._db, source, claim, self._settings)
                    await round_.run()
            except (ClaimLost, DatabaseUnreachable):
                raise
            except Exception as raised:
                error = raised
        counts: Counter[str] = Counter(round_.outcomes.values() if round_ is not None else ())
        progressed = bool(counts.keys() - {"quarantined"})
        if deadline.cancelled_caught and not counts:  # else a backlog: the next poll goes on
            error = ConnectionLost(f"the poll was not done within {deadline_seconds:g} s")
        if round_ is not None and error is not None and self._may_be_a_message(claim, error):
            patience_seconds = deadline_seconds / 2 if deadline.cancelled_caught else 0
            if await self._pass_by(round_, error, patience_seconds):
                counts["quarantined"] += 1
                if round_.caught_up:
                    error = None  # all that is new was taken: the next ones do not have to wait
        await self._record(claim, error, progressed=progressed)
        return PollReport(counts, error)

    def _may_be_a_message(self, claim: Claim, error: Exception) -> bool:
        """A lost connection, or a server that pleads its load over one message again and again."""
        is_stubborn = claim.consecutive_failures >= STUBBORN_AFTER_FAILURES
        return isinstance(error, ConnectionLost) or (
            isinstance(error, MailboxThrottled) and is_stubborn
        )

    async def _pass_by(self, round_: Round, error: Exception, patience_seconds: float) -> bool:
        """A message that took the connection down alone goes to quarantine; the next ones flow."""
        left = [ref for ref in round_.in_flight if ref not in round_.outcomes]
        spent_seconds = trio.current_time() - round_.in_flight_since
        is_alone = len(round_.in_flight) == len(left) == 1
        if is_alone and spent_seconds >= patience_seconds:
            await round_.quarantine(left[0], error)
            return True
        return False

    async def _record(self, claim: Claim, error: Exception | None, *, progressed: bool) -> None:
        if error is None:
            if claim.consecutive_failures:
                log.info("%s: works again", claim.address)
            async with self._db.connection() as conn:
                await complete_poll(conn, claim)
            return
        failure = decide_failure(claim, error, progressed=progressed)
        self._report(claim, error, failure)
        async with self._db.connection() as conn:
            await fail_poll(
                conn,
                claim,
                failures=failure.failures,
                error=str(error) or type(error).__name__,
                state=failure.state,
                delay_seconds=failure.delay_seconds,
            )

    def _report(self, claim: Claim, error: Exception, failure: Failure) -> None:
        """One line; none for a mailbox that is known to need new credentials."""
        if failure.state == claim.state == "needs_reauth":
            return
        hint = getattr(error, "hint", None)
        log.log(
            logging.WARNING if hasattr(error, "hint") else logging.ERROR,
            "%s: %s%s; next attempt in %.0f s",
            claim.address,
            error or type(error).__name__,
            f" ({hint})" if hint else "",
            failure.delay_seconds,
            exc_info=None if hasattr(error, "hint") else error,
        )


class Poller:
    """The loop around `MailboxPoller`."""

    def __init__(
        self, db: Database, settings: Settings, mailboxes: MailboxPoller, health: Health
    ) -> None:
        self._db = db
        self._settings = settings
        self._stopping = health.stopping
        # A cycle beats at each claim, and waits for a free slot no longer than a poll may take.
        self._patience_seconds = settings.poll_timeout_seconds
        silence_seconds = max(settings.poll_interval_seconds, settings.poll_timeout_seconds)
        self._heartbeat = health.add_heartbeat("poller", silence_seconds)
        self._polls = ClaimedWork(
            "poll",
            self._claim,
            mailboxes.poll,
            slots=settings.poll_concurrency,
            stopping=health.stopping,
        )

    async def run(self) -> None:
        """Poll until the service stops; then the polls under way come to their end."""
        async with trio.open_nursery() as nursery:

            async def cycle() -> float:
                return await self.poll_due_once(nursery)

            await run_cycles(cycle, heartbeat=self._heartbeat, stopping=self._stopping)

    async def poll_due_once(self, nursery: trio.Nursery) -> float:
        """Claim until nothing is due, each poll in `nursery`; seconds until something is."""
        while await self._polls.start(nursery, patience_seconds=self._patience_seconds):
            self._heartbeat.beat()
        await recover_stuck_requests(self._db, self._settings)
        async with self._db.connection() as conn:
            seconds = await seconds_until_due(conn)
        interval = self._settings.poll_interval_seconds
        return interval if seconds is None else min(max(seconds, MIN_PAUSE_SECONDS), interval)

    async def _claim(self, limit: int) -> Sequence[Claim]:
        async with self._db.connection() as conn:
            return await claim_due(conn, min(limit, self._settings.poll_claim_limit))
