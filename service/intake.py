"""One round against one mailbox: from the cursor to rows, each message exactly once.

Pass 1 reads headers and structures of a batch; pass 2 the texts, then, for messages that are not
stored yet, the files that the triage wants. A batch is written in short transactions that move
the cursor together with the rows. A message that cannot be read is narrowed down by halving the
batch and goes to the quarantine alone; a lost connection ends the round.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal

import trio

from service import metrics
from service.db.driver_errors import REJECTED_ERRORS
from service.db.mailboxes import Claim, move_cursor
from service.db.pool import Database
from service.db.quarantine import insert_quarantined, list_retryable, resolve_message
from service.db.requests import find_fingerprints, is_stored, store_requests
from service.errors import ConnectionLost, FetchRefused
from service.mail.compose import Draft
from service.mail.message import Planned, compose_all, finish_all, plan_message, runs
from service.mail.reader import PartReader
from service.mail.source import MailSource, News, ServerRef
from service.model import Cursor, FailedMessage, NewRequest, Overview, Ref, Stage
from service.settings import Settings

log = logging.getLogger(__name__)

BATCH_MESSAGES = 200
GROUP_MAX_BYTES = 8 * 1024 * 1024
COMPOSE_BYTES = 256 * 1024  # a thread cannot be cancelled, and HTML takes a second a MiB
RETRIES_PER_ROUND = 10
MAX_FAILED_IN_A_ROW = 10
ERROR_MAX_CHARS = 500

Outcome = Literal["stored", "duplicate", "quarantined", "too_old", "gone"]


class Round:
    """One round. `outcomes` says what became of each message so far, `in_flight` what it is at,
    `caught_up` whether all that is new was taken and only retries are left."""

    def __init__(self, db: Database, source: MailSource, claim: Claim, settings: Settings) -> None:
        self.outcomes: dict[Ref, Outcome] = {}
        self.in_flight: Sequence[Ref] = ()
        self.in_flight_since = trio.current_time()
        self.caught_up = False
        self._failed_in_a_row = 0
        self._db = db
        self._source = source
        self._claim = claim
        self._limits = settings.limits
        self._announces = settings.sends_webhooks
        self._reader = PartReader(source, settings.extract_max_bytes)
        self._news: News | None = None
        self._cursor = claim.cursor

    async def run(self) -> None:
        """Take everything new, then try again what is in quarantine."""
        await self._take_news(await self._open())
        self.caught_up = True
        if self._claim.has_quarantine:
            await self._take_again(await self._retryable())

    async def replay(self, server_ref: ServerRef) -> Outcome:
        """Take one message of the quarantine again; "gone" also when its name means another now."""
        await self._source.open()
        ref = self._source.find_ref(server_ref)
        if ref is None:
            return "gone"
        await self._take_again([ref])
        return self.outcomes[ref]

    async def quarantine(self, ref: Ref, error: object) -> None:
        """Pass a message by that took the connection down."""
        await self._write([FailedMessage(ref, "fetch", str(error))], self._cursor_after(ref))

    async def _open(self) -> News:
        self._news = news = await self._source.open_news(
            self._claim.cursor, self._claim.ingest_since
        )
        if news.restart is not None:
            log.warning(
                "%s: %s: reading again from %s, storing nothing twice",
                self._claim.address,
                news.restart,
                self._claim.ingest_since or "the beginning",
            )
        return news

    async def _take_news(self, news: News) -> None:
        """After a failed round start with single messages: the one that broke it shows itself."""
        size = 1 if self._claim.consecutive_failures else BATCH_MESSAGES
        while refs := await news.next_batch(size):
            await self._take(refs)
            size = min(size * 2, BATCH_MESSAGES)
        if news.cursor not in (None, self._cursor):
            await self._write([], news.cursor)

    def _cursor_after(self, ref: Ref) -> Cursor | None:
        """What is taken again lies before the cursor, and does not move it."""
        if self.caught_up or self._news is None:
            return self._cursor
        return self._news.cursor_after(ref)

    async def _take(self, refs: Sequence[Ref]) -> None:
        """Store these messages; the one that makes the fetch fail is found by halving."""
        self.in_flight, self.in_flight_since = refs, trio.current_time()
        try:
            await self._take_batch(refs)
        except FetchRefused as error:
            left = [ref for ref in refs if ref not in self.outcomes]
            if len(left) > 1:
                middle = len(left) // 2
                await self._take(left[:middle])
                await self._take(left[middle:])
            elif left:
                failed = await self._failed(left[0], "fetch", error)
                await self._write([failed], self._cursor_after(left[0]))
                self._stop_if_hopeless()

    def _stop_if_hopeless(self) -> None:
        """One message after the other fails: it is the server, and the rest is left for later."""
        if self._failed_in_a_row >= MAX_FAILED_IN_A_ROW and not self.caught_up:
            raise ConnectionLost(
                f"{self._failed_in_a_row} messages in a row could not be taken",
                hint="see why: quarantine list",
            )

    async def _take_again(self, refs: Iterable[Ref]) -> None:
        """One attempt more for messages in quarantine; what is taken now is resolved."""
        for ref in refs:
            self.outcomes.pop(ref, None)
            await self._take([ref])
            if self.outcomes[ref] == "gone":
                await self.quarantine(ref, "the message is no longer on the server")
            if self.outcomes[ref] != "quarantined":
                server_ref = self._source.server_ref(ref)
                async with self._db.connection() as conn:
                    await resolve_message(conn, self._claim.mailbox_id, server_ref)

    async def _retryable(self) -> list[Ref]:
        async with self._db.connection() as conn:
            server_refs = await list_retryable(
                conn, self._claim.mailbox_id, scope=self._source.scope, limit=RETRIES_PER_ROUND
            )
        refs = map(self._source.find_ref, server_refs)
        return [ref for ref in refs if ref is not None and ref not in self.outcomes]

    async def _take_batch(self, refs: Sequence[Ref]) -> None:
        found = await self._source.fetch_overviews(refs, partial(plan_message, limits=self._limits))
        await self._check_gone([ref for ref in refs if ref not in {entry.ref for entry in found}])
        entries = []
        for entry in found:
            if isinstance(entry, Planned) and self._is_too_old(entry.overview):
                self._record(entry.ref, "too_old")
            else:
                entries.append(entry)
        for group in runs(entries, _read_bytes, GROUP_MAX_BYTES):
            await self._take_group(group)
        if self._cursor != (cursor := self._cursor_after(refs[-1])):
            await self._write([], cursor)

    async def _check_gone(self, unanswered: Sequence[Ref]) -> None:
        """A message may be deleted between search and fetch; one that is still listed is not."""
        if not unanswered:
            return
        present = await self._source.list_present(unanswered)
        for ref in unanswered:
            if ref not in present:
                self._record(ref, "gone")
        if present:
            raise FetchRefused("the server lists the message, but gives nothing of it")

    def _is_too_old(self, overview: Overview) -> bool:
        since = self._claim.ingest_since
        return since is not None and overview.received_at < since

    async def _take_group(self, group: Sequence[Planned | FailedMessage]) -> None:
        """Pass 2 for one group, and its rows: texts, then the files of what is not stored yet."""
        planned = [entry for entry in group if isinstance(entry, Planned)]
        texts = await self._reader.fetch_texts(planned)
        composed = [
            entry
            for run in runs(planned, _read_bytes, COMPOSE_BYTES)
            for entry in await self._source.compute(compose_all, run, texts)
        ]
        _refuse_failures_among_others([*group, *composed], len(group))
        drafts = [entry for entry in composed if isinstance(entry, Draft)]
        with ExitStack() as spools:
            fresh = await self._leave_out_stored(drafts)
            files = await self._reader.fetch_files(fresh, spools)
            finished = await self._source.compute(finish_all, fresh, files)
            _refuse_failures_among_others(finished, len(group))
            results = [
                await self._failed(one.ref, one.stage, one.error)
                if isinstance(one, FailedMessage)
                else one
                for one in (*group, *composed, *finished)
                if isinstance(one, FailedMessage | NewRequest)
            ]
            await self._store(results, upto=group[-1].ref)
        self._stop_if_hopeless()

    async def _leave_out_stored(self, drafts: Sequence[Draft]) -> list[Draft]:
        """The fast path: what is stored already needs no files. The constraint still decides."""
        identities = [
            (draft.request.source_ref, draft.request.content_fingerprint) for draft in drafts
        ]
        async with self._db.connection() as conn:
            known = await find_fingerprints(conn, identities)
        fresh = []
        for draft, identity in zip(drafts, identities, strict=True):
            if is_stored(*identity, known):
                self._record(draft.request.ref, "duplicate")
            else:
                fresh.append(draft)
        return fresh

    async def _failed(self, ref: Ref, stage: Stage, error: object) -> FailedMessage:
        """A failed message, with its raw bytes when they can be had."""
        raw = await self._reader.fetch_raw(ref)
        # PostgreSQL's second line quotes the row, which is the mail.
        reason = str(error).partition("\n")[0] or type(error).__name__
        return FailedMessage(ref, stage, reason[:ERROR_MAX_CHARS], raw)

    async def _store(self, outcomes: Sequence[NewRequest | FailedMessage], *, upto: Ref) -> None:
        """Write a group; what the database will not have is found one by one."""
        try:
            await self._write(outcomes, self._cursor_after(upto))
        except REJECTED_ERRORS as error:
            if len(outcomes) > 1:
                order = {ref: place for place, ref in enumerate(self.in_flight)}
                for one in sorted(outcomes, key=lambda entry: order[entry.ref]):
                    await self._store([one], upto=one.ref)
            elif isinstance(outcomes[0], NewRequest):
                failed = await self._failed(outcomes[0].ref, "store", error)
                await self._write([failed], self._cursor_after(upto))
            else:
                raise

    async def _write(
        self, outcomes: Sequence[NewRequest | FailedMessage], cursor: Cursor | None
    ) -> None:
        """One short transaction: the rows, and the cursor past them, under the fencing token."""
        requests = [entry for entry in outcomes if isinstance(entry, NewRequest)]
        failed = [entry for entry in outcomes if isinstance(entry, FailedMessage)]
        mailbox_id = self._claim.mailbox_id
        async with self._db.transaction() as conn:
            await move_cursor(conn, self._claim, cursor)
            results = await store_requests(conn, mailbox_id, requests, announces=self._announces)
            for one in failed:
                await insert_quarantined(conn, mailbox_id, self._source.server_ref(one.ref), one)
        self._cursor = cursor
        for request, result in zip(requests, results, strict=True):
            self._record(request.ref, "stored" if result == "stored" else "duplicate")
        for one in failed:
            log.warning(
                "%s: message %s put in quarantine (%s): %s",
                self._claim.address,
                one.ref,
                one.stage,
                one.error,
            )
            self._record(one.ref, "quarantined")

    def _record(self, ref: Ref, outcome: Outcome) -> None:
        self.outcomes[ref] = outcome
        self._failed_in_a_row = self._failed_in_a_row + 1 if outcome == "quarantined" else 0
        metrics.MESSAGES.labels(outcome).inc()


def _read_bytes(entry: Planned | FailedMessage) -> int:
    """What is to be read of a message; one that failed is alone, for its raw bytes."""
    return entry.plan.read_bytes if isinstance(entry, Planned) else GROUP_MAX_BYTES


def _refuse_failures_among_others(entries: Iterable[object], group_size: int) -> None:
    """A message that fails is found by halving, like one that the server refuses.

    Only alone it goes to quarantine: the raw bytes of many do not fit into memory.
    """
    if group_size > 1 and any(isinstance(entry, FailedMessage) for entry in entries):
        raise FetchRefused("a message of several cannot be parsed")
