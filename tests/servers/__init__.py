"""The real parts that the tests run on: PostgreSQL, Dovecot and PgBouncer, each a context manager.

Each lives in a temporary folder of its own on free loopback ports, is ready once entered, and is
stopped and removed at the end. What is not installed skips the test, or fails it where
MAILROOM_REQUIRE_SERVERS=1. All calls block.
"""

from tests.servers.dovecot import Dovecot
from tests.servers.idle_watch import IdleWatch
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresCluster
from tests.servers.process import wait_until

__all__ = ["Dovecot", "IdleWatch", "PgBouncer", "PostgresCluster", "wait_until"]
