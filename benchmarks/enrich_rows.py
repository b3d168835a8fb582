"""The rows of the enricher's benchmarks."""

from typing import Any

import psycopg

# In an order that has nothing to do with the domains, but is the same in each run.
_INSERT = """
    INSERT INTO job_advertisement (email)
    SELECT format('jobs-%%s@%%s', n, replace(%(name)s, '#', (n %% %(domains)s)::text))
    FROM generate_series(0, %(rows)s - 1) AS n ORDER BY md5(n::text)
"""
_NAME = "company-#.example.com"


def domain_name(number: int) -> str:
    return _NAME.replace("#", str(number))


def insert_rows(conn: psycopg.Connection[Any], rows: int, *, domains: int) -> None:
    """Rows that are due from the end of the transaction on, spread evenly over the domains."""
    with conn.transaction():
        conn.execute(_INSERT, {"rows": rows, "domains": domains, "name": _NAME})
        conn.execute("ANALYZE job_advertisement")
