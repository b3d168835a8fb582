"""The rival of `enrich.py`: a bare loop that asks the API about each domain once and keeps nothing.

`python -m benchmarks.enrich_rival API_URL DOMAINS CONCURRENCY` prints the seconds that took.
"""

import sys
import time

import httpx
import trio

from benchmarks.enrich_rows import domain_name


async def ask_all(url: str, domains: int, concurrency: int) -> float:
    """Seconds until the last answer, with that many calls at once."""
    limiter = trio.CapacityLimiter(concurrency)

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        async with limiter:
            response = await http.get(url, params={"domain": domain_name(number)})
            if response.json() != {"verdict": "valid"}:
                raise RuntimeError(f"the API answered {response.text}")

    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(trust_env=False, limits=limits) as http:
        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for number in range(domains):
                nursery.start_soon(ask, http, number)
        return time.monotonic() - began


if __name__ == "__main__":
    print(trio.run(ask_all, sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
