"""The errors that mailroom raises on purpose: one root and a few classes.

Each message is one plain sentence for the person who runs the service; `hint`, where given,
says what to do about it.
"""


class MailroomError(Exception):
    """Root of every error raised on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class SettingsError(MailroomError):
    """An environment variable has a wrong value, or a needed one is missing."""


class SchemaError(MailroomError):
    """The database's schema is missing, older or newer than this version needs."""


class DatabaseUnreachable(MailroomError):
    """PostgreSQL is away, or went away in the middle; the same may work in a moment."""


class DatabaseBusy(DatabaseUnreachable):
    """PostgreSQL is there, but cannot do this now: a lock, a deadlock, a full disk."""


class IOInsideTransaction(MailroomError):
    """An outbound call was about to start while a database connection was held (rule 1)."""


class ClaimLost(MailroomError):
    """A late write: the row's stamp is no longer the one under which the work was claimed."""


class ReadFailed(MailroomError):
    """A file gives nothing, or an answer on it makes no sense, however often it is tried.

    `code` is for programs: `password_required`, `damaged`, `no_text` and so on.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TryLater(MailroomError):
    """A step did not work this time, by no fault of the file; it may be that of the machine."""

    def __init__(
        self, message: str, *, retry_after_seconds: float | None = None, counts: bool = True
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.counts = counts


class TooManyWaits(MailroomError):
    """As many clients are waiting as this replica takes."""


class ServiceStopping(MailroomError):
    """The service is being stopped: nobody can wait here any more."""


class MailError(MailroomError):
    """A mail server could not be used; the classes below say what kind of trouble it is."""


class MailboxUnreachable(MailError):
    """Name resolution, TCP or TLS failed, or the folder cannot be opened."""


class CredentialsRefused(MailError):
    """The server said no to user name or password."""


class MailboxThrottled(MailError):
    """The server asked to come back later; `retry_after_seconds` if it said when."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ConnectionLost(MailError):
    """An open connection ended, hung past its time-out or stopped making sense."""


class FetchRefused(MailError):
    """FETCH failed or its answer cannot be used, while the connection itself is still good."""
