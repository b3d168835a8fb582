"""Code that holds a transaction while it waits for something else, in roundabout ways."""

LOUD_FLOWS = {
    "a lock": """
        import asyncio

        lock = asyncio.Lock()

        async def f(engine):
            async with engine.begin() as conn:
                async with lock:  #! error
                    await conn.execute("SELECT 1")
        """,
    "another transaction": """
        async def f(orders, stock):
            async with orders.begin() as one:
                async with stock.begin() as other:  #! error
                    await other.execute("SELECT 1")
        """,
    "async for": """
        async def f(session, queue):
            async with session.begin():
                async for message in queue:  #! error
                    session.add(message)
        """,
    "comprehensions": """
        async def f(session, client, feed):
            async with session.begin():
                pages = [await client.get(url) for url in urls]  #! error
                items = {item.id: item async for item in feed()}  #! error
        """,
    "threads": """
        import asyncio
        import trio

        async def f(engine, loop):
            async with engine.begin() as conn:
                await asyncio.to_thread(read_file, "x")  #! error
                await trio.to_thread.run_sync(read_file, "x")  #! error
                await loop.run_in_executor(None, read_file)  #! error
        """,
    "gather": """
        import asyncio

        async def f(engine, client):
            async with engine.begin() as conn:
                await asyncio.gather(
                    conn.execute("SELECT 1"),
                    client.get("https://example.com"),  #! error
                )
                await asyncio.gather(*[client.get(url) for url in urls])  #! error
        """,
    "gather over a list made before": """
        import asyncio

        async def f(engine, client):
            calls = [client.get(url) for url in urls]
            async with engine.begin() as conn:
                await asyncio.gather(*calls)  #! error
        """,
    "gather over a list that grows": """
        import asyncio

        async def f(engine, client):
            async with engine.begin() as conn:
                calls = []
                for url in urls:
                    calls.append(client.get(url))
                await asyncio.gather(*calls)  #! error
        """,
    "a task": """
        import asyncio

        async def f(engine, client):
            early = asyncio.create_task(client.get("https://example.com"))
            async with engine.begin() as conn:
                await early  #! error
                late = asyncio.create_task(client.get("https://example.com"))  #! error
                await late
        """,
    "wait_for": """
        import asyncio

        async def f(engine, client):
            async with engine.begin() as conn:
                await asyncio.wait_for(client.get("https://example.com"), timeout=5)  #! error
        """,
    "task group": """
        import asyncio

        async def f(engine):
            async with engine.begin() as conn:
                async with asyncio.TaskGroup() as group:
                    group.create_task(notify("x"))  #! error
        """,
    "nursery": """
        import trio
        from functools import partial

        async def fetch(url, timeout):
            await client.get(url)  #! error

        async def f(db):
            async with db.transaction() as conn:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.get, "https://example.com")  #! error
                    nursery.start_soon(partial(fetch, timeout=3), "https://example.com")
                    await nursery.start(server)  #! error
        """,
    "helpers, several levels down": """
        async def store(engine, row):
            async with engine.begin() as conn:
                await save(conn, row)

        async def save(conn, row):
            await conn.execute("INSERT", row)
            await announce(row)

        async def announce(row):
            await bus.publish(row)  #! error
        """,
    "a helper that calls itself": """
        async def walk(conn, node):
            await conn.execute("SELECT 1")
            await fetch(node.url)  #! error
            for child in node.children:
                await walk(conn, child)

        async def f(engine, root):
            async with engine.begin() as conn:
                await walk(conn, root)
        """,
    "methods": """
        class Service:
            async def save(self, row):
                async with self.db.transaction() as conn:
                    await self._insert(conn, row)

            async def _insert(self, conn, row):
                await conn.execute("INSERT", row)
                await self.mailer.send(row)  #! error
        """,
    "an inherited method, and super()": """
        class Mailing:
            async def _notify(self):
                await self.smtp.send()  #! error

        class Service(Mailing):
            async def save(self, db):
                async with db.transaction() as conn:
                    await self._notify()

            async def _notify(self):
                await super()._notify()
        """,
    "a nested function that is called": """
        async def f(db, client):
            async with db.transaction() as conn:
                async def check(row):
                    return await client.get(row)  #! error

                for row in await conn.fetch("SELECT 1"):
                    await check(row)
        """,
    "a plain function that returns a coroutine": """
        def validate(email):
            return client.get("https://example.com", params={"q": email})  #! error

        async def f(db):
            async with db.transaction() as conn:
                await validate("a@example.com")
        """,
    "an abstract method": """
        class Checker:
            async def check(self, row):
                raise NotImplementedError

            async def run(self, db):
                async with db.transaction() as conn:
                    await self.check(1)  #! error
        """,
    "the row does not stand for the connection": """
        async def f(session):
            async with session.begin():
                user = await session.get(User, 1)
                await notify(user)  #! error
                await user.send_mail()  #! error
        """,
    "a transaction of one's own": """
        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def transaction_for(pool, user):
            async with pool.acquire() as conn:
                async with conn.transaction():
                    await conn.execute("SET LOCAL ROLE app")
                    yield conn

        async def f(pool, client):
            async with transaction_for(pool, "x") as conn:
                await conn.execute("SELECT 1")
                await client.get("https://example.com")  #! error
        """,
    "a transaction of one's own, two levels and a method": """
        class Database:
            @asynccontextmanager
            async def unit(self):
                async with self._begun() as conn:
                    yield conn

            def _begun(self):
                return self._engine.begin()

            async def f(self):
                async with self.unit() as conn:
                    await conn.execute("SELECT 1")
                    await self._http.get("https://example.com")  #! error
        """,
    "exit stack": """
        from contextlib import AsyncExitStack

        async def f(engine, client):
            async with AsyncExitStack() as stack:
                await client.get("https://example.com")
                conn = await stack.enter_async_context(engine.begin())
                await conn.execute("SELECT 1")
                await stack.enter_async_context(make_client())  #! error
                await client.get("https://example.com")  #! error
            await client.get("https://example.com")
        """,
    "exit stack, entered deeper": """
        async def f(engine, client, needed):
            async with AsyncExitStack() as stack:
                with timer():
                    await stack.enter_async_context(engine.begin())
                await client.get("https://example.com")  #! error
            await client.get("https://example.com")
        """,
    "branches, loops and handlers": """
        async def f(db, client):
            async with db.transaction() as conn:
                try:
                    while await conn.fetchval("SELECT 1"):
                        if (reply := await client.get("https://example.com")):  #! error
                            break
                except ValueError:
                    await client.get("https://example.com")  #! error
                finally:
                    await (client.close() if client else conn.close())  #! error
                match await conn.fetchval("SELECT 2"):
                    case 1:
                        return await client.get("https://example.com")  #! error
        """,
    "run_sync": """
        import requests  #! review

        def load(session, url):
            session.add(requests.get(url).text)  #! error

        async def f(engine):
            async with engine.begin() as conn:
                await conn.run_sync(load, "https://example.com")
        """,
    "run_sync of a lambda": """
        import httpx  #! review

        async def f(engine):
            async with engine.begin() as conn:
                await conn.run_sync(lambda c: httpx.get("https://example.com"))  #! error
        """,
    "methods of an object of this module": """
        import requests  #! review

        class Api:
            def check(self, email):
                return requests.get(email)  #! error

        class Job:
            def __init__(self, api: Api):
                self.api = api

            def run(self, session):
                other = Api()
                with session.begin():
                    self.api.check("a@example.com")
                    other.check("b@example.com")
        """,
    "the name is bound anew": """
        async def f(db):
            async with db.transaction() as conn:
                conn = connect_elsewhere()
                await conn.get("https://example.com")  #! error
        """,
    "a plain with in an async function": """
        async def f(Session, client):
            with Session.begin() as session:
                session.add(1)
                await client.get("https://example.com")  #! error
        """,
    "at the top of a module": """
        import httpx  #! review

        with engine.begin() as conn:
            httpx.get("https://example.com")  #! error
        """,
    "exit stack with a transaction of one's own": """
        @asynccontextmanager
        async def transaction_for(pool):
            async with pool.acquire() as conn, conn.transaction():
                yield conn

        async def f(pool, client):
            async with AsyncExitStack() as stack:
                conn = await stack.enter_async_context(transaction_for(pool))
                await conn.execute("SELECT 1")
                await client.get("https://example.com")  #! error
        """,
    "what only looks like an ORM": """
        async def f(session, storage, openai):
            async with session.begin():
                await storage.objects.upload("x")  #! error
                await openai.ChatCompletion.acreate(model="x")  #! error
        """,
    "a class that waits when it is entered": """
        class Locked:
            async def __aenter__(self):
                await self.redis.lock("x")  #! error

            async def __aexit__(self, *_):
                pass

        async def f(session):
            async with session.begin():
                async with Locked():
                    await session.flush()
        """,
}
