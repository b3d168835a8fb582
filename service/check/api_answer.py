"""What an answer of the validation API means: the verdict on a domain, or what it is instead.

Pure. `GET {ENRICH_API_URL}?domain=example.com` with the bearer key is answered with 200 and
`{"verdict": "valid" | "invalid" | "unknown", "reason": "some text"}`; `reason` may be missing, and
other members do not matter.
"""

from typing import Literal

import httpx
from pydantic import BaseModel, ValidationError

from service.api_client import ApiKey, RawAnswer
from service.model import AddressVerdict
from service.retry_after import parse_retry_after

MAX_ANSWER_BYTES = 64 * 1024
_SAYS = {
    "valid": "the validation API says that it takes mail",
    "invalid": "the validation API says that it takes no mail",
    "unknown": "the validation API does not know",
}


class WrongAnswer(Exception):
    """The API does not work as it should; `reason` is the code of the verdict."""

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(said)
        self.reason = reason


class _Answer(BaseModel):
    verdict: Literal["valid", "invalid", "unknown"]
    reason: str | None = None


def read_retry_after(answer: RawAnswer) -> float | None:
    """Seconds, where it says when to come back."""
    return parse_retry_after(answer.headers.get("Retry-After"))


def is_throttling(answer: RawAnswer) -> bool:
    """Whether the API works, and asks to come back later."""
    return answer.status == httpx.codes.TOO_MANY_REQUESTS or (
        answer.status == httpx.codes.SERVICE_UNAVAILABLE and read_retry_after(answer) is not None
    )


def read_answer(answer: RawAnswer, key: ApiKey) -> AddressVerdict:
    """The verdict; an unknown one for a request that the API does not like. WrongAnswer."""
    said = key.quote_body(answer.body)
    if answer.status != httpx.codes.OK:
        return _read_failure(answer, said, key)
    if len(answer.body) > MAX_ANSWER_BYTES:
        raise WrongAnswer("api_garbled", f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    try:
        document = _Answer.model_validate_json(answer.body)
    except ValidationError:
        raise WrongAnswer("api_garbled", f"200 without a verdict: {said}") from None
    detail = key.quote(document.reason or "") or _SAYS[document.verdict]
    return AddressVerdict(document.verdict, "api", detail)


def _read_failure(answer: RawAnswer, said: str, key: ApiKey) -> AddressVerdict:
    status, reason = answer.status, f"{answer.status} {said}".rstrip()
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise WrongAnswer("api_refused", f"{reason} (look at ENRICH_API_KEY)")
    if status >= 500:
        raise WrongAnswer("api_error", reason)
    if status >= 400:
        return AddressVerdict("unknown", "api_error", f"the validation API: {reason}")
    if status >= 300:
        location = key.quote(answer.headers.get("Location", ""))
        reason = f"{f'{status} {location}'.rstrip()}, and redirects are not followed"
    raise WrongAnswer("api_garbled", reason)
