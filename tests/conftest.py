"""The fixtures of all tests: a database each, the real servers once, and a guard on the log."""

import itertools
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from service.db.migrate import migrate
from service.db.pool import Database, open_database
from tests.servers import Dovecot, PgBouncer, PostgresCluster

_database_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "expects_errors: the log may hold records of level ERROR")
    # The embedded PostgreSQL says this at its import, on a machine without a login session.
    config.addinivalue_line("filterwarnings", "ignore:XDG_RUNTIME_DIR is not set")


class _ErrorRecords(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


@pytest.fixture(autouse=True)
def no_error_is_logged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves an ERROR in the log, unless it is marked `expects_errors`."""
    records = _ErrorRecords()
    logging.getLogger().addHandler(records)
    yield
    logging.getLogger().removeHandler(records)
    if request.node.get_closest_marker("expects_errors") is None:
        assert not records.messages, "errors in the log:\n" + "\n".join(records.messages)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresCluster]:
    """The cluster of all tests; a test that restarts PostgreSQL makes one of its own."""
    with PostgresCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def migrated_template(postgres: PostgresCluster) -> str:
    """The name of a database that `migrate` has made ready and nobody is connected to."""
    name = "migrated_template"
    trio.run(migrate, postgres.create_database(name))
    return name


@pytest.fixture
def database_url(postgres: PostgresCluster, migrated_template: str) -> Iterator[str]:
    """A migrated database for this test alone."""
    name = f"test_{next(_database_numbers)}"
    yield postgres.create_database(name, template=migrated_template)
    postgres.drop_database(name)


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    """The service's own pool on this test's database."""
    async with open_database(database_url) as database:
        await database.connect()
        yield database


@pytest.fixture
def pgbouncer(database_url: str) -> Iterator[PgBouncer]:
    """PgBouncer in front of this test's `database_url`, with two server connections."""
    with PgBouncer(database_url) as bouncer:
        yield bouncer


@pytest.fixture(scope="session")
def dovecot() -> Iterator[Dovecot]:
    """A Dovecot without TLS; take a user of your own with `dovecot.new_user()`."""
    with Dovecot() as server:
        yield server


@pytest.fixture(scope="session")
def dovecot_tls() -> Iterator[Dovecot]:
    """A Dovecot with STARTTLS and an imaps port."""
    with Dovecot(tls=True) as server:
        yield server
