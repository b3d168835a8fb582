"""One round against one mailbox: from the cursor to rows, each message exactly once.

Pass 1 reads headers and structures of a batch; pass 2 the texts, then, for messages that are not
stored yet, the files that the triage wants. A batch is written in short transactions that move
the cursor together with the rows. A message that cannot be read is narrowed down by halving the
batch and goes to the quarantine alone; a lost connection ends the round.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
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
from service.mail.imap import ImapSession
from service.mail.message import Planned, compose_all, finish_all, plan_message, runs
from service.mail.reader import PartReader
from service.model import Cursor, FailedMessage, NewRequest, Overview, Stage
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
    """One round. `outcomes` says what became of each UID so far, `in_flight` what it is at,
    `caught_up` whether all that is new was taken and only retries are left."""

    def __init__(
        self, db: Database, session: ImapSession, claim: Claim, settings: Settings
    ) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.in_flight: Sequence[int] = ()
        self.in_flight_since = trio.current_time()
        self.caught_up = False
        self._failed_in_a_row = 0
        self._db = db
        self._session = session
        self._claim = claim
        self._limits = settings.limits
        self._announces = settings.sends_webhooks
        self._reader = PartReader(session, settings.extract_max_bytes)
        self._uidvalidity = 0
        self._cursor_uid = 0

    async def run(self) -> None:
        """Take everything new, then try again what is in quarantine."""
        for uids in self._batches(await self._open()):
            await self._take(uids)
        self.caught_up = True
        if self._claim.has_quarantine:
            await self._take_again(await self._retryable())

    async def replay(self, message: Cursor) -> Outcome:
        """Take one message of the quarantine again; "gone" also when UIDs mean others now."""
        await self._open()
        if message.uidvalidity != self._uidvalidity:
            return "gone"
        await self._take_again([message.uid])
        return self.outcomes[message.uid]

    async def quarantine(self, uid: int, error: object) -> None:
        """Pass a message by that took the connection down."""
        await self._write([FailedMessage(uid, "fetch", str(error))], upto=uid)

    async def _open(self) -> list[int]:
        """EXAMINE and SEARCH; a cursor counts only under the UIDVALIDITY it was made with."""
        folder = await self._session.examine()
        self._uidvalidity = folder.uidvalidity
        cursor, since = self._claim.cursor, self._claim.ingest_since
        if cursor is not None and cursor.uidvalidity == self._uidvalidity != 0:
            self._cursor_uid = cursor.uid
            return await self._session.search_new(after_uid=cursor.uid, since=None)
        if cursor is not None and cursor.uidvalidity != self._uidvalidity:
            log.warning(
                "%s: UIDVALIDITY was %s, is now %s: reading again from %s, storing nothing twice",
                self._claim.address,
                cursor.uidvalidity,
                self._uidvalidity or "not given",
                since or "the beginning",
            )
        return await self._session.search_new(after_uid=None, since=since)

    def _batches(self, uids: Sequence[int]) -> Iterator[Sequence[int]]:
        """After a failed round start with single messages: the one that broke it shows itself."""
        size = 1 if self._claim.consecutive_failures else BATCH_MESSAGES
        start = 0
        while start < len(uids):
            yield uids[start : start + size]
            start += size
            size = min(size * 2, BATCH_MESSAGES)

    async def _take(self, uids: Sequence[int]) -> None:
        """Store these messages; the one that makes FETCH fail is found by halving."""
        self.in_flight, self.in_flight_since = uids, trio.current_time()
        try:
            await self._take_batch(uids)
        except FetchRefused as error:
            left = [uid for uid in uids if uid not in self.outcomes]
            if len(left) > 1:
                middle = len(left) // 2
                await self._take(left[:middle])
                await self._take(left[middle:])
            elif left:
                await self._write([await self._failed(left[0], "fetch", error)], upto=left[0])
                self._stop_if_hopeless()

    def _stop_if_hopeless(self) -> None:
        """One message after the other fails: it is the server, and the rest is left for later."""
        if self._failed_in_a_row >= MAX_FAILED_IN_A_ROW and not self.caught_up:
            raise ConnectionLost(
                f"{self._failed_in_a_row} messages in a row could not be taken",
                hint="see why: quarantine list",
            )

    async def _take_again(self, uids: Iterable[int]) -> None:
        """One attempt more for messages in quarantine; what is taken now is resolved."""
        for uid in uids:
            self.outcomes.pop(uid, None)
            await self._take([uid])
            if self.outcomes[uid] == "gone":
                await self.quarantine(uid, "the message is no longer on the server")
            if self.outcomes[uid] != "quarantined":
                async with self._db.connection() as conn:
                    await resolve_message(conn, self._claim.mailbox_id, self._uidvalidity, uid)

    async def _retryable(self) -> list[int]:
        async with self._db.connection() as conn:
            uids = await list_retryable(
                conn,
                self._claim.mailbox_id,
                uidvalidity=self._uidvalidity,
                limit=RETRIES_PER_ROUND,
            )
        return [uid for uid in uids if uid not in self.outcomes]

    async def _take_batch(self, uids: Sequence[int]) -> None:
        found = await self._session.fetch_overviews(
            uids, partial(plan_message, limits=self._limits)
        )
        await self._check_gone(set(uids) - {entry.uid for entry in found})
        entries = []
        for entry in found:
            if isinstance(entry, Planned) and self._is_too_old(entry.overview):
                self._record(entry.uid, "too_old")
            else:
                entries.append(entry)
        for group in runs(entries, _read_bytes, GROUP_MAX_BYTES):
            await self._take_group(group)
        if self._cursor_uid < uids[-1]:
            await self._write([], upto=uids[-1])

    async def _check_gone(self, unanswered: set[int]) -> None:
        """A message may be deleted between SEARCH and FETCH; one that is still listed is not."""
        if not unanswered:
            return
        present = await self._session.list_present(sorted(unanswered))
        for uid in unanswered.difference(present):
            self._record(uid, "gone")
        if present:
            raise FetchRefused("the server lists the message, but FETCH gives nothing of it")

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
            for entry in await self._session.compute(compose_all, run, texts)
        ]
        _refuse_failures_among_others([*group, *composed], len(group))
        drafts = [entry for entry in composed if isinstance(entry, Draft)]
        with ExitStack() as spools:
            fresh = await self._leave_out_stored(drafts)
            files = await self._reader.fetch_files(fresh, spools)
            finished = await self._session.compute(finish_all, fresh, files)
            _refuse_failures_among_others(finished, len(group))
            results = [
                await self._failed(one.uid, one.stage, one.error)
                if isinstance(one, FailedMessage)
                else one
                for one in (*group, *composed, *finished)
                if isinstance(one, FailedMessage | NewRequest)
            ]
            await self._store(results, upto=group[-1].uid)
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
                self._record(draft.request.uid, "duplicate")
            else:
                fresh.append(draft)
        return fresh

    async def _failed(self, uid: int, stage: Stage, error: object) -> FailedMessage:
        """A failed message, with its raw bytes when they can be had."""
        raw = await self._reader.fetch_raw(uid)
        # PostgreSQL's second line quotes the row, which is the mail.
        reason = str(error).partition("\n")[0] or type(error).__name__
        return FailedMessage(uid, stage, reason[:ERROR_MAX_CHARS], raw)

    async def _store(self, outcomes: Sequence[NewRequest | FailedMessage], *, upto: int) -> None:
        """Write a group; what the database will not have is found one by one."""
        try:
            await self._write(outcomes, upto=upto)
        except REJECTED_ERRORS as error:
            if len(outcomes) > 1:
                for one in sorted(outcomes, key=lambda entry: entry.uid):
                    await self._store([one], upto=one.uid)
            elif isinstance(outcomes[0], NewRequest):
                failed = await self._failed(outcomes[0].uid, "store", error)
                await self._write([failed], upto=upto)
            else:
                raise

    async def _write(self, outcomes: Sequence[NewRequest | FailedMessage], *, upto: int) -> None:
        """One short transaction: the rows, and the cursor past them, under the fencing token."""
        requests = [entry for entry in outcomes if isinstance(entry, NewRequest)]
        failed = [entry for entry in outcomes if isinstance(entry, FailedMessage)]
        cursor = Cursor(self._uidvalidity, max(upto, self._cursor_uid))
        async with self._db.transaction() as conn:
            await move_cursor(conn, self._claim, cursor)
            results = await store_requests(
                conn, self._claim.mailbox_id, requests, announces=self._announces
            )
            for one in failed:
                await insert_quarantined(conn, self._claim.mailbox_id, self._uidvalidity, one)
        self._cursor_uid = cursor.uid
        for request, result in zip(requests, results, strict=True):
            self._record(request.uid, "stored" if result == "stored" else "duplicate")
        for one in failed:
            log.warning(
                "%s: message UID %s put in quarantine (%s): %s",
                self._claim.address,
                one.uid,
                one.stage,
                one.error,
            )
            self._record(one.uid, "quarantined")

    def _record(self, uid: int, outcome: Outcome) -> None:
        self.outcomes[uid] = outcome
        self._failed_in_a_row = self._failed_in_a_row + 1 if outcome == "quarantined" else 0
        metrics.MESSAGES.labels(outcome).inc()


def _read_bytes(entry: Planned | FailedMessage) -> int:
    """What is to be read of a message; one that failed is alone, for its raw bytes."""
    return entry.plan.read_bytes if isinstance(entry, Planned) else GROUP_MAX_BYTES


def _refuse_failures_among_others(entries: Iterable[object], group_size: int) -> None:
    """A message that fails is found by halving, like one that FETCH refuses.

    Only alone it goes to quarantine: the raw bytes of many do not fit into memory.
    """
    if group_size > 1 and any(isinstance(entry, FailedMessage) for entry in entries):
        raise FetchRefused("a message of several cannot be parsed")
