"""The catalogue of problem types (RFC 9457): every kind of error that the API answers with.

Each has a page at `PAGES_PATH`; `problems.py` makes answers of them.
"""

from dataclasses import dataclass
from http import HTTPStatus

PAGES_PATH = "/docs/errors/email/messages"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of error: `meaning` and `remedy` are for the page and the OpenAPI document."""

    slug: str
    status: int
    meaning: str
    remedy: str

    @property
    def title(self) -> str:
        """The status in words; what happened this time is in the document's `detail`."""
        return HTTPStatus(self.status).phrase


UNAUTHORIZED = ProblemType(
    "unauthorized",
    401,
    "The request has no valid token: none was sent, it is unknown, has expired or was revoked.",
    "Send `Authorization: Bearer <token>`; make one with `python -m service token create`.",
)
FORBIDDEN = ProblemType(
    "forbidden",
    403,
    "The token is valid, but lacks the scope or does not cover this mailbox.",
    "Use a token with the scope and for the mailbox; `token list` shows what each one may do.",
)
NOT_FOUND = ProblemType(
    "not-found",
    404,
    "There is no such mailbox, message, request, attachment or page, or not for this token; or the "
    "bytes of this attachment were not kept.",
    "Check the address: `mailbox list` shows the mailboxes; a message may have been deleted.",
)
METHOD_NOT_ALLOWED = ProblemType(
    "method-not-allowed",
    405,
    "The resource exists, but not for this method.",
    "Use one of the methods that the `Allow` header names.",
)
AWAIT_TIMEOUT = ProblemType(
    "await-timeout",
    408,
    "No matching message arrived within the time given. The document says how many looks there "
    "were (`rounds`), how many messages they saw (`messages_seen`: what arrived meanwhile, and "
    "what the first look's `imap_search` found), which filter turned away how many of them "
    "(`rejected_by`), and the last trouble with the mail server (`last_error`).",
    "Repeat the request with `after` set to the `cursor` of the document: nothing that arrives "
    "in between is missed. If `rejected_by` counts messages, compare that filter with the mail.",
)
NOT_RETRYABLE = ProblemType(
    "not-retryable",
    409,
    "The attachment is not at its end: it waits for its turn or is being read; or it was skipped, "
    "so that it is never read.",
    "Ask for the request again until the attachment is `done` or `failed`. Of what was skipped "
    "`verdict_reason` says why; `/content` has its bytes where they were kept.",
)
INVALID_REQUEST = ProblemType(
    "invalid-request",
    422,
    "A parameter is unknown, given twice, or has a value that makes no sense; `errors` names each.",
    "Correct the parameters; `/docs` describes them.",
)
RATE_LIMITED = ProblemType(
    "rate-limited",
    429,
    "The token has used up its requests, counted over all replicas.",
    "Wait for the seconds in `Retry-After`; wait longer per request instead of asking more often.",
)
INTERNAL_ERROR = ProblemType(
    "internal-error",
    500,
    "The service failed to answer.",
    "Its log has the reason; please report it.",
)
MAILBOX_AUTH_FAILED = ProblemType(
    "mailbox-auth-failed",
    502,
    "The mail server refused the mailbox's user name or password, so waiting makes no sense.",
    "Run `mailbox test ADDRESS`, then store the right password: `mailbox update ADDRESS`.",
)
MAILBOX_UNAVAILABLE = ProblemType(
    "mailbox-unavailable",
    502,
    "The mail server cannot be reached, or did not answer in a way that makes sense.",
    "Try again; `mailbox test ADDRESS` shows at which step it fails.",
)
AWAIT_OVERLOADED = ProblemType(
    "await-overloaded",
    503,
    "As many clients are waiting on this replica as AWAIT_MAX_CONCURRENT_WAITS allows.",
    "Try again after `Retry-After`. If it happens often raise the cap, or start a replica.",
)
SHUTTING_DOWN = ProblemType(
    "shutting-down",
    503,
    "This replica is being stopped.",
    "Try again: another replica, or this one after its restart, goes on.",
)
DATABASE_UNAVAILABLE = ProblemType(
    "database-unavailable",
    503,
    "The service's database cannot be reached at the moment.",
    "Try again after `Retry-After`; `/readyz` says how the service is.",
)

PROBLEM_TYPES = (
    UNAUTHORIZED,
    FORBIDDEN,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    AWAIT_TIMEOUT,
    NOT_RETRYABLE,
    INVALID_REQUEST,
    RATE_LIMITED,
    INTERNAL_ERROR,
    MAILBOX_AUTH_FAILED,
    MAILBOX_UNAVAILABLE,
    AWAIT_OVERLOADED,
    SHUTTING_DOWN,
    DATABASE_UNAVAILABLE,
)
