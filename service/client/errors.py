"""What the client raises: one root, and the few kinds that a caller would tell apart.

Each message is for people. None holds the token, nor the body of an answer that a stranger made.
All can be pickled, so that they pass through process pools: `args` are those of the constructor.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Problem = Mapping[str, Any]
"""A problem document (RFC 9457), as it was sent."""


class ClientError(Exception):
    """Root of every error about what the service, or the way to it, did.

    `problem` is the problem document that the service sent, empty where it sent none.
    """

    problem: Problem = MappingProxyType({})


class ServiceUnreachable(ClientError):
    """No whole answer came; `__cause__` is httpx's error."""


class UnexpectedAnswer(ClientError):
    """An answer that the service does not give: a proxy's page, a redirect, JSON of other shape."""

    def __init__(self, status: int, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(status, message, retry_after_seconds)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        return self.message


class ProblemError(ClientError):
    """The service answered with a problem document; `status` is that of the answer."""

    def __init__(
        self, status: int, problem: Problem, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(status, problem, retry_after_seconds)
        self.status = status
        self.problem = problem
        self.retry_after_seconds = retry_after_seconds

    @property
    def slug(self) -> str:
        """The last segment of `type`, such as `await-overloaded`."""
        return problem_slug(self.problem)

    def __str__(self) -> str:
        return _describe(self.problem, self.status)


class MailboxAuthFailed(ProblemError):
    """The mail server refused the credentials that the service has for this mailbox."""


class AwaitTimeout(ClientError):
    """No matching message came in time.

    `problem` is the last document that the service sent, empty if it never sent one: mostly a
    408, which says what was seen and what turned it down; a 429 or 503 if there was never a look.
    Where the last try got no such document, `__cause__` says what it got.
    """

    def __init__(self, message: str, problem: Problem) -> None:
        super().__init__(message, problem)
        self.message = message
        self.problem = problem

    def __str__(self) -> str:
        if not self.problem:
            return self.message
        return f"{self.message}: {_describe(self.problem)}"


def problem_slug(problem: Problem) -> str:
    """The last segment of `type`; `about:blank` when the problem has none of its own."""
    return str(problem.get("type", "about:blank")).rstrip("/").rpartition("/")[2]


def _describe(problem: Problem, status: int | None = None) -> str:
    heading = (status or problem.get("status"), problem.get("title"))
    words = " ".join(str(word) for word in heading if word)
    return ": ".join(str(part) for part in (words, problem.get("detail")) if part)
