"""One claimed attachment from its bytes to its outcome: read it, ask the LLM, write the result.

Whatever goes wrong becomes an outcome with a reason: `failed` where trying again is of no use,
else `pending` again with a back-off until the attempts are used up. No connection is held while it
reads and asks.
"""

import gc
import json
import logging
from dataclasses import dataclass

import trio

from service import metrics
from service.db.attachments import Claim, Outcome, load_content
from service.db.pool import Database
from service.errors import ClaimLost, DatabaseUnreachable, ReadFailed, TryLater
from service.extract.llm import Llm
from service.extract.prompt import Document
from service.extract.readers import Readers
from service.outcomes import OutcomeWriter
from service.settings import Settings

log = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 60
UNCOUNTED_DELAY_SECONDS = 10
MAX_DELAY_SECONDS = 3600
RELEASE_TIMEOUT_SECONDS = 2
# Its holder gives a claim back before the watchdog takes it for stuck.
SHARE_OF_STUCK_TIME = 0.8


def decide_failure(
    claim: Claim, error: Exception, result: bytes | None, *, max_attempts: int
) -> Outcome:
    """What an error makes of a claim; what was read before it is kept with a final one."""
    kept = None if result is None else result.decode()
    if isinstance(error, ReadFailed):
        return Outcome(claim, "failed", kept, f"{error.code}: {error}")
    if isinstance(error, DatabaseUnreachable):
        return Outcome(claim, "pending", error=str(error))
    if isinstance(error, TryLater) and not error.counts:
        return Outcome(claim, "pending", error=str(error), delay_seconds=UNCOUNTED_DELAY_SECONDS)
    reason = str(error) if isinstance(error, TryLater) else f"{type(error).__name__}: {error}"
    attempts = claim.attempts + 1
    if attempts >= max_attempts:
        sentence = f"unavailable: {reason}, attempt {attempts} of {max_attempts}"
        return Outcome(claim, "failed", kept, sentence, counted=1)
    asked_seconds = getattr(error, "retry_after_seconds", None) or 0
    delay_seconds = max(FIRST_DELAY_SECONDS * 2.0 ** min(claim.attempts, 20), asked_seconds)
    delay_seconds = min(delay_seconds, MAX_DELAY_SECONDS)
    return Outcome(claim, "pending", error=reason, counted=1, delay_seconds=delay_seconds)


@dataclass(slots=True)
class _Progress:
    """How far an attempt is, for the case that it gets no further.

    `has_begun`: it is at its turn, and does not wait for others.
    """

    has_begun: bool = False
    result: bytes | None = None


class Processor:
    """Works on claims, several at once."""

    def __init__(self, db: Database, settings: Settings, readers: Readers, llm: Llm | None) -> None:
        self._db = db
        self._readers = readers
        self._llm = llm
        # One that is read and one that waits, for each reader: as many files are in memory.
        self._reading = trio.CapacityLimiter(2 * settings.pipeline_concurrency)
        self._asking = trio.CapacityLimiter(settings.llm_concurrency)
        self._max_attempts = settings.pipeline_max_attempts
        self._deadline_seconds = settings.watchdog_stuck_after_seconds * SHARE_OF_STUCK_TIME
        self._writer = OutcomeWriter(db, announces=settings.sends_webhooks)

    @property
    def wants_texts(self) -> bool:
        """Whether a file needs the text of its mail beside it."""
        return self._llm is not None

    async def process(self, claim: Claim) -> Outcome | None:
        """Work on a claim and write what became of it; None when the claim was lost meanwhile.

        A cancellation gives it back, without an attempt counted.
        """
        try:
            outcome = await self._decide(claim)
            if self._llm is not None:
                # A refused call leaves cycles in stamina that hold the document, and the service's
                # garbage is collected rarely. Only here is no exception under way any more.
                gc.collect(1)
            is_ours = outcome is not None and await self._writer.write(outcome)
        except trio.Cancelled:
            with trio.move_on_after(RELEASE_TIMEOUT_SECONDS, shield=True):
                await self._writer.write(Outcome(claim, "pending"))
            raise
        if outcome is None or not is_ours:
            log.warning("attachment %s: the claim was lost, its result is dropped", claim.id)
            metrics.ATTACHMENTS.labels("lost").inc()
            return None
        _report(outcome)
        return outcome

    async def _decide(self, claim: Claim) -> Outcome | None:
        """What becomes of a claim, None for a lost one; raises nothing but a cancellation."""
        progress = _Progress()
        with trio.move_on_after(self._deadline_seconds):
            return await self._attempt(claim, progress)
        late = TryLater(
            f"not done within {self._deadline_seconds:g} s",
            counts=progress.has_begun,  # else others took all the time
        )
        return decide_failure(claim, late, progress.result, max_attempts=self._max_attempts)

    async def _attempt(self, claim: Claim, progress: _Progress) -> Outcome | None:
        try:
            result = progress.result = await self._read(claim, progress)
            answered = await self._ask(claim, result, progress)
            return Outcome(claim, "done", answered.decode())
        except ClaimLost:
            return None
        except Exception as error:
            if not isinstance(error, ReadFailed | TryLater | DatabaseUnreachable):
                log.exception("attachment %s: an attempt crashed", claim.id)
            return decide_failure(claim, error, progress.result, max_attempts=self._max_attempts)

    async def _read(self, claim: Claim, progress: _Progress) -> bytes:
        """The JSON of what is in the document. Large files are loaded when their turn comes."""
        if claim.kind == "body":
            body: dict[str, object] = {"text": claim.body_text, "pages": [], "warnings": []}
            return json.dumps(body, ensure_ascii=False).encode()
        async with self._reading:
            progress.has_begun = True
            content = claim.content
            if content is None:
                content = await load_content(self._db, claim)
            with metrics.READ_SECONDS.time():
                return await self._readers.read(content)

    async def _ask(self, claim: Claim, result: bytes, progress: _Progress) -> bytes:
        """The result with the LLM's answer in it, where there is one to ask."""
        if self._llm is None:
            return result
        progress.has_begun = False
        document = Document(
            filename=claim.filename,
            result=result,
            context_text=claim.body_text if claim.kind == "file" else None,
            gives_context_rows=claim.gives_context_rows,
        )
        async with self._asking:
            progress.has_begun = True
            answer = await self._llm.ask(document)
        return await trio.to_thread.run_sync(_with_answer, result, answer)


def _with_answer(result: bytes, answer: dict[str, object]) -> bytes:
    return json.dumps({**json.loads(result), "llm": answer}, ensure_ascii=False).encode()


def _report(outcome: Outcome) -> None:
    """Failed files are the senders' business, what is tried again is the operator's."""
    metrics.ATTACHMENTS.labels(outcome.status).inc()
    if outcome.status == "failed":
        log.info("attachment %s failed: %s", outcome.claim.id, outcome.error)
    elif outcome.status == "pending":
        log.warning(
            "attachment %s: %s; next attempt in %.0f s",
            outcome.claim.id,
            outcome.error,
            outcome.delay_seconds,
        )
