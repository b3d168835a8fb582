"""Code whose transactions hold nothing else in roundabout ways, and code that has none."""

QUIET_FLOWS = {
    "given the connection": """
        from app.rows import insert_row, touch

        async def f(db, helper):
            async with db.transaction() as conn:
                await insert_row(conn, 1)
                await touch(1, connection=conn)
                await helper(rows=[1], conns=(conn,))
        """,
    "retried with the connection": """
        async def f(db, retry):
            async with db.transaction() as conn:
                await retry(lambda: conn.execute("SELECT 1"))
                await retry(conn.execute, "SELECT 1")

                async def work():
                    await conn.execute("SELECT 2")

                await retry(work)
        """,
    "helpers": """
        async def store(engine, row):
            async with engine.begin() as conn:
                await save(conn, row)
                await nothing()
                check(row)

        async def save(conn, row):
            result = await conn.execute("INSERT", row)
            await result.fetchall()
            await deeper(row, c=conn)

        async def deeper(row, *, c):
            async with c.begin_nested():
                await c.execute("SELECT 1")
            await save(c, row)

        async def nothing():
            return 1

        def check(row):
            return row.id
        """,
    "methods": """
        class Store:
            async def save(self, rows):
                async with self._db.transaction() as conn:
                    self._count += 1
                    for row in rows:
                        await self._insert(conn, row)

            async def _insert(self, conn, row):
                await conn.execute("INSERT", row)
                await self._touch(conn)

            @staticmethod
            async def _touch(conn):
                await conn.execute("UPDATE")
        """,
    "an object that carries the connection": """
        async def f(uow):
            async with uow.transaction():
                await uow.users.add(1)
                await count(uow)

        async def count(unit):
            await unit.session.execute("SELECT 1")
        """,
    "the context's own methods": """
        class Repository(Base):
            async def f(self):
                async with self.transaction():
                    await self.execute("SELECT 1")
                    await self.deeper()

            async def deeper(self):
                await self.fetch("SELECT 1")
        """,
    "merely defined": """
        async def f(db, client):
            async with db.transaction() as conn:
                async def later():
                    await client.get("https://example.com")

                send = lambda: client.post("https://example.com")
                await conn.execute("SELECT 1")
            await later()
        """,
    "a method of the connection by itself": """
        async def f(db):
            async with db.transaction() as conn:
                conn = cast(Connection, conn)
                conn = await conn.execution_options(yield_per=100)
                await insert_row(conn)
                execute = conn.execute
                await execute("SELECT 1")
                self.conn = conn
                await self.conn.execute("SELECT 2")
        """,
    "after the block, else and except": """
        async def f(db, client):
            try:
                async with db.transaction() as conn:
                    await conn.execute("SELECT 1")
            except ValueError:
                await client.get("https://example.com")
            else:
                await client.get("https://example.com")
            finally:
                await client.close()
        """,
    "the client around": """
        async def f(engine, make_client):
            async with make_client() as client, engine.begin() as conn:
                await conn.execute("SELECT 1")
        """,
    "timeouts and groups": """
        import asyncio
        from contextlib import AsyncExitStack, aclosing, suppress

        async def f(engine):
            async with engine.begin() as conn:
                async with asyncio.timeout(5), asyncio.TaskGroup() as group:
                    group.create_task(conn.execute("SELECT 1"))
                await asyncio.wait_for(conn.execute("SELECT 1"), 5)
                await asyncio.gather(*(conn.execute(q) for q in queries))
                await asyncio.sleep(0)
                async with aclosing(conn.cursor()) as rows:
                    async for row in rows:
                        pass
        """,
    "nursery": """
        import trio

        async def insert(conn, row):
            await conn.execute("INSERT", row)

        async def f(db):
            async with db.transaction() as conn, trio.open_nursery() as nursery:
                nursery.start_soon(insert, conn, 1)
                nursery.start_soon(conn.execute, "SELECT 1")
        """,
    "exit stack": """
        async def f(engine, client):
            async with AsyncExitStack() as stack:
                conn = await stack.enter_async_context(engine.connect())
                await stack.enter_async_context(conn.begin())
                await conn.execute("SELECT 1")
            await client.get("https://example.com")
        """,
    "a transaction of one's own": """
        @asynccontextmanager
        async def transaction_for(conn):
            async with conn.transaction():
                yield

        async def f(conn):
            async with transaction_for(conn):
                await conn.execute("SELECT 1")
        """,
    "a transaction of one's own inside another": """
        class Store:
            @asynccontextmanager
            async def savepoint(self, conn):
                async with conn.begin_nested():
                    yield

            async def f(self):
                async with self.engine.begin() as conn:
                    async with self.savepoint(conn):
                        await conn.execute("SELECT 1")
        """,
    "a context manager without a transaction": """
        @asynccontextmanager
        async def lent(pool):
            async with pool.acquire() as conn:
                yield conn

        async def f(pool, client):
            async with lent(pool) as conn:
                await client.get("https://example.com")
        """,
    "begin without a block": """
        async def f(player, sentry_sdk):
            await player.begin()
            with sentry_sdk.start_transaction(op="task"):
                await client.get("https://example.com")
        """,
    "sync and local": """
        import time

        def f(engine):
            started = time.monotonic()
            with engine.begin() as conn:
                requests = conn.execute("SELECT 1")
                requests.all()
                get("x")
            time.sleep(1)
        """,
    "objects and aliases that do not block": """
        class Reader:
            def read(self, row):
                return row.id

        class Job:
            def __init__(self, reader: Reader, session: Session):
                self.reader = reader
                self.session = session

            def run(self, convert=str):
                with self.session.begin():
                    rows = list(map(convert, self.session.execute("SELECT 1")))
                    ids = [self.reader.read(row) for row in rows]
        """,
    "run_sync of a lambda that uses the connection": """
        async def f(engine):
            async with engine.begin() as conn:
                await conn.run_sync(lambda c: inspect(c).get_columns("t"))
        """,
    "a server's answers": """
        from aiohttp import web

        async def f(request):
            async with request.app["db"].transaction() as conn:
                await conn.execute("SELECT 1")
                await request.app["db"].execute("SELECT 2")
                return web.json_response({})
        """,
    "an own function hides an imported one": """
        async def f(db, save):
            async with db.transaction() as conn:
                await save(conn)

        async def save(conn):
            await client.get("https://example.com")
        """,
    "generators of the connection": """
        async def rows(conn):
            async for row in conn.cursor("SELECT 1"):
                yield row

        async def f(db):
            async with db.transaction() as conn:
                ids = [row.id async for row in rows(conn)]
                first = await anext(rows(conn))
        """,
    "not what it looks like": '''
        TEXT = """
        async with db.begin() as conn:
            await client.get("https://example.com")
        """
        # async with db.begin(): await client.get()
        ''',
}
