"""Code that was loud and is mended: commit first, then wait, then write in a new transaction."""

QUIET_MENDED = {
    "SQLAlchemy session": """
        async def register(factory, http, user):
            async with factory() as session, session.begin():
                session.add(user)
            await http.post("https://example.com/users", json={"id": user.id})
            async with factory.begin() as session:
                await session.merge(user)
        """,
    "SQLModel": """
        async def f(engine, http):
            async with AsyncSession(engine) as session, session.begin():
                heroes = (await session.exec(select(Hero))).all()
            for hero in heroes:
                await http.post("/heroes", json=hero.model_dump())
        """,
    "asyncpg": """
        async def f(pool, client):
            async with pool.acquire() as conn, conn.transaction():
                row = await conn.fetchrow("SELECT 1")
            reply = await client.get(row["url"])
            await pool.execute("UPDATE t SET body = $1", reply.text)
        """,
    "psycopg": """
        async def f(conn, resolver):
            async with conn.transaction(), conn.cursor() as cur:
                await cur.execute("SELECT domain FROM t")
                domains = await cur.fetchall()
            for (domain,) in domains:
                await resolver.resolve(domain, "MX")
        """,
    "psycopg, a pipeline": """
        async def f(pool):
            async with pool.connection() as conn, conn.transaction():
                async with conn.pipeline() as pipeline:
                    await conn.execute("SELECT 1")
                    await pipeline.sync()
        """,
    "triopg": """
        import trio

        async def f(db):
            for _ in range(3):
                async with db.transaction() as conn:
                    if await conn.fetchval("SELECT 1"):
                        return
                await trio.sleep(1)
        """,
    "aiopg": """
        async def f(engine, bus):
            async with engine.acquire() as conn:
                async with conn.begin():
                    result = await conn.execute("SELECT 1")
                    row = await result.first()
                await bus.publish(row)
        """,
    "databases, decorator": """
        @database.transaction()
        async def insert():
            await database.execute("INSERT")

        async def f():
            await insert()
            await client.get("https://example.com")
        """,
    "Django": """
        def order(request):
            with transaction.atomic():
                order = Order.objects.create()
            requests.post("https://example.com/orders", json={"id": order.pk})
        """,
    "Django, decorator": """
        import time
        from django.db import transaction

        def view(request):
            save(request)
            time.sleep(1)

        @transaction.atomic(durable=True)
        def save(request):
            Order.objects.create()
        """,
    "peewee": """
        def f(db):
            with db.atomic() as tx:
                User.create(name="x")
                tx.rollback()
            requests.get("https://example.com")
        """,
    "sync SQLAlchemy": """
        import subprocess

        def f(Session):
            with Session.begin() as session:
                names = session.scalars(select(User.name)).all()
            subprocess.run(["convert", *names])
        """,
    "threads": """
        import asyncio

        async def f(engine):
            data = await asyncio.to_thread(read_file, "x")
            async with engine.begin() as conn:
                await conn.execute("INSERT", data)
        """,
    "a lock around": """
        async def f(engine, lock):
            async with lock, engine.begin() as conn:
                await conn.execute("SELECT 1")
        """,
    "gather before": """
        import asyncio

        async def f(engine, client):
            replies = await asyncio.gather(*[client.get(url) for url in urls])
            async with engine.begin() as conn:
                for reply in replies:
                    await conn.execute("INSERT", reply.text)
        """,
    "a task that is awaited after": """
        import asyncio

        async def f(engine, client):
            task = asyncio.create_task(client.get("https://example.com"))
            async with engine.begin() as conn:
                await conn.execute("SELECT 1")
            await task
        """,
    "helpers": """
        class Service:
            async def run(self):
                rows = await self._claim()
                results = [await self.client.check(row) for row in rows]
                await self._store(results)

            async def _claim(self):
                async with self._db.transaction() as conn:
                    return await conn.fetch("UPDATE")

            async def _store(self, results):
                async with self._db.transaction() as conn:
                    await self._write(conn, results)

            async def _write(self, conn, results):
                await conn.executemany("UPDATE", results)
        """,
    "exit stack": """
        from contextlib import AsyncExitStack

        async def f(engine, make_client):
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(make_client())
                conn = await stack.enter_async_context(engine.begin())
                await conn.execute("SELECT 1")
        """,
    "a transaction of one's own": """
        @asynccontextmanager
        async def transaction_for(pool):
            async with pool.acquire() as conn, conn.transaction():
                yield conn

        async def f(pool, client):
            async with transaction_for(pool) as conn:
                rows = await conn.fetch("SELECT 1")
            async with client.stream("POST", "https://example.com") as response:
                await response.aread()
        """,
    "an object that is entered": """
        class Unit:
            async def __aenter__(self):
                return self

            async def __aexit__(self, *_):
                pass

        async def f(session):
            async with session.begin():
                async with Unit() as unit:
                    session.add(unit)
        """,
    "yield inside": """
        async def rows(db):
            async with db.transaction() as conn:
                async for row in conn.cursor("SELECT 1"):
                    yield row

        async def f(db, client):
            found = [row async for row in rows(db)]
            await client.post("https://example.com", json=found)
        """,
    "retries": """
        async def f(db, client):
            async for attempt in retries():
                async with db.transaction() as conn:
                    await conn.execute("SELECT 1")
                await client.get("https://example.com")
        """,
}
