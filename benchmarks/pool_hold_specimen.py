"""A specimen of what must not be done: the enricher of the story, which calls the API inside its
transaction, and so holds a server connection of PgBouncer for a whole batch.

`python -m benchmarks.pool_hold_specimen DATABASE_URL API_URL PARTITIONS BATCH_SIZE` runs until it
is terminated.
"""

import asyncio
import sys
from typing import Any

import asyncpg
import httpx

# Each partition has rows of its own: they do not wait for each other's locks.
_SELECT = """
    SELECT id, email FROM job_advertisement
    WHERE email_verified IS NULL AND id % $1 = $2 LIMIT $3
"""
_UPDATE = "UPDATE job_advertisement SET email_verified = $2 WHERE id = $1"


async def enrich_batch(
    conn: Any, http: httpx.AsyncClient, partitions: int, partition: int, batch_size: int
) -> None:
    async with conn.transaction():
        for row in await conn.fetch(_SELECT, partitions, partition, batch_size):
            domain = row["email"].partition("@")[2]
            # review-gate: ok — it is here to be measured
            response = await http.get("", params={"domain": domain})
            await conn.execute(_UPDATE, row["id"], response.json()["verdict"] == "valid")


async def enrich(database_url: str, api_url: str, partitions: int, batch_size: int) -> None:
    """Until it is terminated."""

    async def run_partition(http: httpx.AsyncClient, number: int) -> None:
        conn = await asyncpg.connect(database_url, statement_cache_size=0)
        while True:
            await enrich_batch(conn, http, partitions, number, batch_size)

    async with (
        httpx.AsyncClient(base_url=api_url, trust_env=False) as http,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(partitions):
            tasks.create_task(run_partition(http, number))


if __name__ == "__main__":
    asyncio.run(enrich(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
