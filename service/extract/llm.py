"""The LLM step: one document and its mail's text in one call to a chat endpoint.

Owns the patience with the endpoint. An answer that comes out of here fits the schema. `ReadFailed`
is final: the document or the answers on it are no use. `TryLater` is the endpoint's trouble, and
says how it went.
"""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import stamina
import trio
from stamina.instrumentation import set_on_retry_hooks

from service import metrics
from service.api_client import ApiClient, ApiKey, NoAnswer, RawAnswer, open_client, parse_url
from service.errors import ReadFailed, TryLater
from service.extract.llm_answer import (
    MAX_ANSWER_BYTES,
    CallFailed,
    WrongAnswer,
    parse_output,
    read_completion,
)
from service.extract.llm_schema import OutputSchema, read_schema
from service.extract.prompt import Document, compose_correction, compose_prompt
from service.outbound import refuse_inside_transaction
from service.settings import Settings

MAX_ANSWERS = 3  # one, and two more when it makes no sense
KEY_BYTES = 12
# From this size on, making sense of JSON is for a thread: the event loop has others to serve.
MAX_BYTES_ON_LOOP = 64 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How a failed call is repeated; a longer `Retry-After` is left to the caller."""

    attempts: int = 3
    first_wait_seconds: float = 0.5
    max_wait_seconds: float = 8
    jitter_seconds: float = 1
    max_retry_after_seconds: float = 30


PATIENCE = Patience()


@dataclass(slots=True)
class _Tally:
    """What one document has taken so far."""

    calls: int = 0
    usage: dict[str, int | None] = field(
        default_factory=lambda: {"prompt_tokens": None, "completion_tokens": None}
    )

    def add_tokens(self, prompt: int | None, completion: int | None) -> None:
        for kind, tokens in (("prompt", prompt), ("completion", completion)):
            if tokens is not None:
                self.usage[f"{kind}_tokens"] = (self.usage[f"{kind}_tokens"] or 0) + tokens
                metrics.LLM_TOKENS.labels(kind).inc(tokens)


class Llm:
    """Asks one endpoint; one for the process."""

    def __init__(
        self,
        api: ApiClient,
        name: str,
        settings: Settings,
        schema: OutputSchema,
        patience: Patience,
    ) -> None:
        self._api = api
        self._name = name
        self._model = settings.llm_model
        self._schema = schema
        self._max_input_chars = settings.llm_max_input_chars
        # All calls for one document end well before its claim is taken for stuck.
        self._total_seconds = min(
            settings.llm_timeout_seconds * patience.attempts,
            settings.watchdog_stuck_after_seconds / 2,
        )
        self._patience = patience
        self._retry = stamina.AsyncRetryingCaller(
            attempts=patience.attempts,
            timeout=None,
            wait_initial=patience.first_wait_seconds,
            wait_max=patience.max_wait_seconds,
            wait_jitter=patience.jitter_seconds,
        )

    async def ask(self, document: Document) -> dict[str, object]:
        """What becomes `result["llm"]`. ReadFailed("llm_refused" or "llm_invalid"), TryLater."""
        refuse_inside_transaction("a call to the LLM endpoint")
        with trio.move_on_after(self._total_seconds):
            return await self._ask(document)
        raise self._try_later(f"not done within {self._total_seconds:g} s, repeated calls included")

    async def _ask(self, document: Document) -> dict[str, object]:
        began, tally = trio.current_time(), _Tally()
        key = secrets.token_hex(KEY_BYTES)
        size_bytes = len(document.result) + len(document.context_text or "")
        prompt = await _apart_if_large(
            size_bytes,
            lambda: compose_prompt(
                document, self._schema.document, max_chars=self._max_input_chars, key=key
            ),
        )
        output = await self._converse(prompt.messages, tally)
        return {
            "model": self._model,
            "output": output,
            "input_cut": bool(prompt.warnings),
            "warnings": list(prompt.warnings),
            "usage": tally.usage,
            "calls": tally.calls,
            "duration_seconds": round(trio.current_time() - began, 3),
        }

    async def _converse(self, messages: Iterable[Mapping[str, str]], tally: _Tally) -> object:
        correction: tuple[Mapping[str, str], ...] = ()
        fault = ""
        for _ in range(MAX_ANSWERS):
            try:
                return await self._call([*messages, *correction], tally)
            except WrongAnswer as wrong:
                fault = str(wrong)
                correction = compose_correction(wrong.content, fault)
        raise ReadFailed(
            "llm_invalid", f"the LLM gave {MAX_ANSWERS} answers without use; of the last: {fault}"
        )

    async def _call(self, messages: list[Mapping[str, str]], tally: _Tally) -> object:
        request = {
            "model": self._model,
            "messages": messages,
            "response_format": self._schema.response_format,
        }
        body = json.dumps(request, ensure_ascii=False).encode()
        try:
            return await self._retry(self._decide_wait, self._call_once, body, tally)
        except CallFailed as failed:
            raise self._try_later(str(failed), failed.retry_after_seconds) from None

    def _decide_wait(self, error: BaseException) -> bool | float:
        """stamina's question: again (True: when it likes), in so many seconds, or not (False)."""
        if not isinstance(error, CallFailed) or not error.is_passing:
            return False
        seconds = error.retry_after_seconds
        if seconds is None:
            return True
        if seconds > self._patience.max_retry_after_seconds:
            return False
        jitter_millis = secrets.randbelow(int(self._patience.jitter_seconds * 1000) + 1)
        return float(seconds + jitter_millis / 1000)

    async def _call_once(self, body: bytes, tally: _Tally) -> object:
        tally.calls += 1
        outcome = "broken_off"
        try:
            with metrics.LLM_SECONDS.time():
                answer = await self._post(body)
            output = await _apart_if_large(len(answer.body), lambda: self._read(answer, tally))
            outcome = "ok"
        except CallFailed as failed:
            outcome = failed.outcome
            raise
        except WrongAnswer:
            outcome = "invalid"
            raise
        except ReadFailed:
            outcome = "refused"
            raise
        finally:
            metrics.LLM_CALLS.labels(outcome).inc()
        return output

    async def _post(self, body: bytes) -> RawAnswer:
        try:
            return await self._api.send("POST", "chat/completions", body)
        except NoAnswer as none:
            raise CallFailed(none.outcome, str(none)) from None

    def _read(self, answer: RawAnswer, tally: _Tally) -> object:
        completion = read_completion(answer, self._api.key)
        tally.add_tokens(completion.prompt_tokens, completion.completion_tokens)
        return parse_output(completion, self._schema, self._api.key)

    def _try_later(self, reason: str, retry_after_seconds: float | None = None) -> TryLater:
        return TryLater(f"{self._name}: {reason}", retry_after_seconds=retry_after_seconds)


@asynccontextmanager
async def open_llm(settings: Settings, patience: Patience = PATIENCE) -> AsyncIterator[Llm | None]:
    """The LLM of these settings, None without LLM_BASE_URL. SettingsError."""
    if settings.llm_base_url is None:
        yield None
        return
    schema = read_schema(settings.llm_schema_file)
    # stamina would make a metric of its own name, and log what is counted and raised here anyway.
    set_on_retry_hooks(())
    key = ApiKey("LLM_API_KEY", settings.llm_api_key)
    url = parse_url(settings.llm_base_url, variable="LLM_BASE_URL", key_variable=key.variable)
    async with open_client(
        url,
        key,
        headers={"Content-Type": "application/json"},
        timeout_seconds=settings.llm_timeout_seconds,
        concurrency=settings.llm_concurrency,
        max_bytes=MAX_ANSWER_BYTES,
    ) as api:
        yield Llm(api, f"the LLM endpoint {str(url).rstrip('/')}", settings, schema, patience)


async def _apart_if_large(size_bytes: int, work: Callable[[], T]) -> T:
    if size_bytes <= MAX_BYTES_ON_LOOP:
        return work()
    # Left behind when cancelled: it only computes, and can take seconds.
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
