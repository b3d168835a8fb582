"""Code that does nothing else while it holds a transaction, library by library."""

QUIET_LIBRARIES = {
    "requirements document": """
        async def enrich_batch():
            # Fase 1: SELECT, poi commit immediato
            async with db.begin() as conn:
                rows = await conn.execute(
                    "SELECT id, email FROM job_advertisement "
                    "WHERE email_verified IS NULL LIMIT 200"
                )
                rows = rows.fetchall()
            # Transazione chiusa, connection di nuovo nel pool

            # Fase 2: chiamate HTTP senza connection DB aperta
            results = []
            for row in rows:
                r = await validate_email(row.email)
                results.append((row.id, r))

            # Fase 3: batch UPDATE in una transazione nuova e corta
            async with db.begin() as conn:
                for rid, r in results:
                    await conn.execute(
                        "UPDATE job_advertisement SET email_verified=:v WHERE id=:id",
                        {"v": r, "id": rid},
                    )
        """,
    "no transaction": """
        async def f(client):
            async with client.stream("GET", "https://example.com") as response:
                async for line in response.aiter_lines():
                    await handle(line)
        """,
    "SQLAlchemy session": """
        async def f(async_session):
            async with async_session() as session:
                async with session.begin():
                    session.add_all([User()])
                    result = await session.execute(select(User))
                    users = result.scalars().all()
                    await session.refresh(users[0])
                    await users[0].awaitable_attrs.posts
                    result = await session.stream(select(User))
                    async for user in result.scalars():
                        await session.delete(user)
                    await result.close()
                await notify(users)
        """,
    "SQLAlchemy engine": """
        async def create(engine):
            async with engine.begin() as conn:
                await conn.run_sync(Base.metadata.create_all)
                await conn.run_sync(lambda c: inspect(c).get_table_names())
                async with conn.begin_nested():
                    await conn.execute(text("SELECT 1"))
        """,
    "SQLAlchemy, a repository made with the session": """
        async def f(session):
            users = UserRepository(session)
            async with session.begin():
                await users.add(User())
                await OrderRepository(session).add(Order())
        """,
    "a repository of the object": """
        class Service:
            def __init__(self, session):
                self.session = session
                self.users = UserRepository(session)

            async def save(self, user):
                async with self.session.begin():
                    await self.users.add(user)
                    await self.inherited_check(user)
        """,
    "asyncpg": """
        async def f(pool):
            async with pool.acquire() as conn:
                stmt = await conn.prepare("SELECT 1")
                async with conn.transaction():
                    cur = await conn.cursor("SELECT 1")
                    await cur.fetchrow()
                    await stmt.fetch()
                    async for row in conn.cursor("SELECT 2"):
                        await conn.execute("INSERT", row)
                    await conn.copy_records_to_table("t", records=[])
        """,
    "asyncpg, the transaction in a variable": """
        async def f(conn):
            tx = conn.transaction()
            async with tx:
                await conn.execute("SELECT 1")
        """,
    "psycopg": """
        async def f(pool):
            async with pool.connection() as aconn, aconn.cursor() as cur:
                async with aconn.transaction() as tx:
                    await cur.execute("SELECT 1")
                    row = await (await cur.execute("SELECT 2")).fetchone()
                    async with cur.copy("COPY t FROM STDIN") as copy:
                        await copy.write_row(row)
                    async for one in cur:
                        pass
        """,
    "psycopg, sync": """
        def f(conn):
            with conn.transaction():
                conn.execute("SELECT 1")
                with conn.cursor() as cur:
                    cur.fetchall()
        """,
    "triopg": """
        import trio

        async def f(db):
            async with db.transaction() as conn:
                with trio.fail_after(3):
                    await conn.execute("SELECT 1")
                await trio.lowlevel.checkpoint()
            await trio.sleep(1)
        """,
    "databases": """
        from app.db import database

        async def f():
            async with database.transaction():
                await database.execute(query="SELECT 1")
                await touch()

        async def touch():
            await database.fetch_all("SELECT 1")
        """,
    "databases, connection": """
        async def f(database):
            async with database.connection() as connection:
                async with connection.transaction():
                    await connection.execute("SELECT 1")
        """,
    "databases, beside its connection": """
        async def f(database):
            async with database.connection() as connection:
                async with connection.transaction():
                    await database.execute("SELECT 1")
                    async for row in database.iterate("SELECT 2"):
                        await connection.execute("SELECT 3")
        """,
    "gel": """
        async def f(client):
            async for tx in client.transaction():
                async with tx:
                    await tx.query("select 1")
        """,
    "Django": """
        from django.db import transaction

        @transaction.atomic
        def order(request):
            order = Order.objects.select_for_update().get(pk=1)
            transaction.on_commit(lambda: requests.post("https://example.com"))
            transaction.on_commit(send_later)
            with transaction.atomic(savepoint=True):
                order.save()

        def send_later():
            import time
            time.sleep(1)
        """,
    "Django's async ORM": """
        async def f():
            with atomic():
                user = await User.objects.aget(pk=1)
                await user.asave()
                async for one in User.objects.filter(x=1):
                    await one.adelete()
        """,
}
