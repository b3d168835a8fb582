"""Pages of requests: how much is read for them, whatever PostgreSQL believes of the rows."""

import re

import pytest

from service.db.pool import Database
from service.db.request_views import MAX_ID, PAGES, RequestStatus, list_requests

REQUESTS = 20_000
FILL = f"""
    INSERT INTO request (source_ref, content_fingerprint, received_at, body_text)
    SELECT n, repeat('0', 64), now(), 'x' FROM generate_series(1, {REQUESTS}) n;
    INSERT INTO attachment (request_id, kind, content_type, size_bytes, verdict, status, result,
                            finished_at)
    SELECT id, 'body', 'text/plain', 1, 'extract', 'done', '{{}}', now() FROM request;
    ANALYZE;
"""
END = {
    "processing": "status = 'pending', finished_at = NULL",
    "failed": "status = 'failed', error = 'x'",
}


@pytest.mark.parametrize("status", ["processing", "failed"])
@pytest.mark.parametrize("believed", ["done", "processing", "failed"])
async def test_the_few_requests_of_a_status_are_found_among_many(
    db: Database, status: RequestStatus, believed: str
) -> None:
    """The oldest have it, while the statistics are from when none or all of them had one."""
    async with db.connection() as conn:
        await conn.execute(FILL)
        if believed != "done":
            await conn.execute(f"UPDATE attachment SET {END[believed]}")
            await conn.execute("ANALYZE attachment")
        done = "status = 'done', finished_at = now()"
        await conn.execute(f"UPDATE attachment SET {done}")
        await conn.execute("ALTER TABLE attachment SET (autovacuum_enabled = false)")
        await conn.execute(f"UPDATE attachment SET {END[status]} WHERE request_id <= 3")
        explain = f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {PAGES[status]}"
        plan = await conn.fetch(explain, MAX_ID, None, None, 51)
    page = await list_requests(db, status=status, limit=50)
    assert [request.id for request in page.requests] == [3, 2, 1]
    counts = re.findall(r"actual rows=(\d+)", "\n".join(row[0] for row in plan))
    assert 3 <= max(map(int, counts)) < 100
