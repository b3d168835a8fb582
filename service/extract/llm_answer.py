"""What an LLM endpoint's answer means: the output, or the error that says what it is instead.

Pure. An answer is untrusted: its shape is checked, its JSON is cleaned for jsonb, and what is
quoted of it in an error is short, printable and never holds the API key.
"""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, Field, ValidationError

from service.api_client import ApiKey, RawAnswer
from service.errors import ReadFailed
from service.extract.llm_schema import OutputSchema
from service.mail.header import clean
from service.retry_after import parse_retry_after

MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_TOKENS = 10**9  # no call takes more; a counter must not believe what is beyond
# Someone has to put a setting right: the attempts are not to be used up at once.
MISCONFIGURED_RETRY_SECONDS = 300

_ABOUT_THE_DOCUMENT = frozenset({400, 413, 422})
_PASSING = frozenset({408, 409, 425, 429})
_VARIABLE = {401: "LLM_API_KEY", 403: "LLM_API_KEY", 404: "LLM_BASE_URL and LLM_MODEL"}


class CallFailed(Exception):
    """A call came to nothing by no fault of the document; `outcome` is its name in the metrics.

    `is_passing`: the same call may work in a moment.
    """

    def __init__(
        self,
        outcome: str,
        reason: str,
        *,
        is_passing: bool = True,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.is_passing = is_passing
        self.retry_after_seconds = retry_after_seconds


class WrongAnswer(Exception):
    """The model answered, but not with JSON that fits the schema; `content` is what it said."""

    def __init__(self, fault: str, content: str) -> None:
        super().__init__(fault)
        self.content = content


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model said, and the tokens it took (None where the server does not say)."""

    content: str
    is_cut: bool
    prompt_tokens: int | None
    completion_tokens: int | None


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Body(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: Any = None


def read_completion(answer: RawAnswer, key: ApiKey) -> Completion:
    """The completion of a 200. CallFailed; ReadFailed("llm_refused") for what is refused."""
    if answer.status != httpx.codes.OK:
        raise _failure(answer, key)
    if len(answer.body) > MAX_ANSWER_BYTES:
        raise CallFailed("garbled", f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    try:
        body = _Body.model_validate(parse_json(answer.body))
    except (ValueError, RecursionError) as error:
        what = "no chat completion" if isinstance(error, ValidationError) else "no JSON"
        said = key.quote_body(answer.body)
        raise CallFailed("garbled", f"200 with {what}: {said}") from None
    choice = body.choices[0]
    if choice.message.refusal or choice.finish_reason == "content_filter":
        said = key.quote(choice.message.refusal or "content filter")
        raise ReadFailed("llm_refused", f"the LLM refused the document: {said}")
    usage = body.usage if isinstance(body.usage, dict) else {}
    return Completion(
        choice.message.content or "",
        choice.finish_reason == "length",
        _tokens(usage.get("prompt_tokens")),
        _tokens(usage.get("completion_tokens")),
    )


def parse_output(completion: Completion, schema: OutputSchema, key: ApiKey) -> object:
    """The JSON that the model answered with, ready for jsonb. WrongAnswer."""
    content = completion.content
    if completion.is_cut:
        raise WrongAnswer("it was cut at the limit on its length, so be shorter", content)
    try:
        output = parse_json(_without_fence(content))
        faults = schema.describe_faults(output)
    except ValueError as error:
        raise WrongAnswer(f"it is no JSON: {key.quote(str(error))}", content) from None
    except RecursionError:
        raise WrongAnswer("it is nested too deep", content) from None
    if faults is not None:
        fault = f"it does not fit the schema: {key.quote(faults)}"
        raise WrongAnswer(fault, content)
    return output


def parse_json(source: str | bytes) -> object:
    """JSON as jsonb takes it: without NUL, lone surrogates and infinite numbers.

    ValueError, RecursionError.
    """
    return _clean(json.loads(source))


def _failure(answer: RawAnswer, key: ApiKey) -> CallFailed | ReadFailed:
    status, said = answer.status, key.quote_body(answer.body)
    reason = f"{status} {said}".rstrip()
    if status in _ABOUT_THE_DOCUMENT:
        return ReadFailed("llm_refused", f"the LLM endpoint refused the document: {reason}")
    if status in _PASSING or status >= 500:
        outcome = "throttled" if status == httpx.codes.TOO_MANY_REQUESTS else "server_error"
        wait = parse_retry_after(answer.headers.get("Retry-After"))
        return CallFailed(outcome, reason, retry_after_seconds=wait)
    if status < 400:
        reason = f"{status} {key.quote(answer.headers.get('Location', ''))}".rstrip()
    variable = _VARIABLE.get(status, "LLM_BASE_URL")
    return CallFailed(
        "misconfigured",
        f"{reason} (look at {variable})",
        is_passing=False,
        retry_after_seconds=MISCONFIGURED_RETRY_SECONDS,
    )


def _without_fence(content: str) -> str:
    """What stands between the outermost Markdown fences, if there are any."""
    opened, closed = content.find("```"), content.rfind("```")
    if content.lstrip().startswith(("{", "[")) or opened == closed:
        return content
    return content[opened + 3 : closed].removeprefix("json")


def _clean(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name): _clean(child) for name, child in value.items()}
    if isinstance(value, list):
        return [_clean(child) for child in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("NaN and Infinity are no JSON numbers")
    return value


def _tokens(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
