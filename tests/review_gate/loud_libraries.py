"""Code that holds a transaction while it waits for something else, library by library."""

LOUD_LIBRARIES = {
    "requirements document": """
        async def enrich_batch():
            async with db.begin() as conn:
                rows = await conn.execute(
                    "SELECT id, email FROM job_advertisement "
                    "WHERE email_verified IS NULL LIMIT 200"
                )
                for row in rows:
                    # HTTP async — 200-1200 ms per chiamata
                    result = await validate_email(row.email)  #! error
                    await conn.execute(
                        "UPDATE job_advertisement SET email_verified=:v WHERE id=:id",
                        {"v": result, "id": row.id},
                    )
        """,
    "SQLAlchemy session": """
        async def register(factory, http, user):
            async with factory() as session, session.begin():
                session.add(user)
                await session.flush()
                await http.post("https://example.com/users", json={"id": user.id})  #! error
        """,
    "SQLAlchemy sessionmaker": """
        async_session = async_sessionmaker(engine)

        async def register(user):
            async with async_session.begin() as session:
                session.add(user)
                await send_welcome_mail(user)  #! error
        """,
    "SQLAlchemy savepoint": """
        async def f(session):
            async with session.begin_nested():
                await publish("created")  #! error
        """,
    "SQLAlchemy, a session of the object": """
        class Service:
            async def save(self, user):
                async with self.session.begin():
                    self.session.add(user)
                    await self.http.post("/users")  #! error
        """,
    "asyncpg": """
        async def f(pool, client):
            async with pool.acquire() as conn, conn.transaction():
                row = await conn.fetchrow("SELECT 1")
                reply = await client.get(row["url"])  #! error
                await conn.execute("UPDATE t SET body = $1", reply.text)
        """,
    "asyncpg, a second connection of the pool": """
        async def f(pool):
            async with pool.acquire() as conn:
                async with conn.transaction():
                    await pool.execute("SELECT 1")  #! error
        """,
    "psycopg, a second connection of the pool": """
        async def f(pool):
            async with pool.connection() as conn, conn.transaction():
                async with pool.connection() as other:  #! error
                    await conn.execute("SELECT 1")
        """,
    "asyncpg, the transaction in a variable": """
        async def f(conn, bus):
            tx = conn.transaction(isolation="serializable")
            async with tx:
                await conn.execute("SELECT 1")
                await bus.publish("x")  #! error
        """,
    "psycopg": """
        async def f(conn, resolver):
            async with conn.transaction() as tx, conn.cursor() as cur:
                await cur.execute("SELECT domain FROM t")
                async for (domain,) in cur:
                    await resolver.resolve(domain, "MX")  #! error
        """,
    "triopg": """
        import trio

        async def f(conn):
            async with conn.transaction():
                await conn.execute("SELECT 1")
                await trio.sleep(1)  #! error
        """,
    "databases": """
        database = Database("postgresql://")

        async def f():
            async with database.transaction():
                await database.execute("SELECT 1")
                await cache.set("k", 1)  #! error
        """,
    "Django, with": """
        import requests
        from django.db import transaction

        def order(request):
            with transaction.atomic():
                order = Order.objects.create()
                requests.post("https://example.com/orders", json={})  #! error
        """.replace("import requests", "import requests  #! review"),
    "Django, decorator": """
        from django.core.mail import send_mail  #! review
        from django.db import transaction

        @transaction.atomic
        def order(request):
            Order.objects.create()
            send_mail("subject", "text", None, ["a@example.com"])  #! error
        """,
    "Django, decorator with arguments, of a method": """
        import time
        from django.db.transaction import atomic

        class View:
            @method_decorator(atomic(using="other"))
            def post(self, request):
                self._slow()

            def _slow(self):
                time.sleep(1)  #! error
        """,
    "Django in an async function": """
        async def view(request):
            with transaction.atomic():
                await http.get("https://example.com")  #! error
        """,
    "Django, async_to_sync": """
        def view(request):
            with atomic():
                async_to_sync(notify)("text")  #! error
        """,
    "sync SQLAlchemy": """
        import smtplib  #! review
        import subprocess

        def f(engine):
            with engine.begin() as conn:
                conn.execute("SELECT 1")
                subprocess.run(["convert"])  #! error
                with smtplib.SMTP("mail.example.com") as server:  #! error
                    server.send_message(message)  #! error
        """,
    "blocking calls under other names": """
        from requests import get as fetch  #! review
        from time import sleep as pause
        from urllib.request import urlopen

        def f(Session):
            with Session.begin() as session:
                fetch("https://example.com")  #! error
                urlopen("https://example.com")  #! error
                pause(2)  #! error
        """,
    "a client made before": """
        import boto3  #! review
        import stripe

        s3 = boto3.client("s3")

        class Store:
            def __init__(self):
                self.queue = boto3.resource("sqs")

            def put(self, engine):
                with engine.begin() as conn:
                    s3.put_object(Bucket="b")  #! error
                    self.queue.Queue("q").send_message()
                    stripe.Charge.create(amount=1)  #! error
        """.replace('Queue("q").send_message()', 'Queue("q").send_message()  #! error'),
    "Django's mails": """
        from django.core.mail import EmailMessage  #! review

        def order(request):
            with transaction.atomic():
                EmailMessage("subject", "text").send()  #! error
                mail = EmailMessage("subject", "text")
                mail.attach("a.txt", b"text")
                mail.send()  #! error
        """,
    "queues and stores": """
        import pika  #! review
        import redis
        from elasticsearch import Elasticsearch

        index = Elasticsearch("https://example.com")

        def f(session):
            with session.begin():
                redis.Redis().publish("channel", "text")  #! error
                channel = pika.BlockingConnection().channel()  #! error
                index.index(index="i", document={})  #! error
        """,
    "an alias of a blocking function": """
        import requests  #! review

        fetch = requests.get

        def f(conn):
            with conn.transaction():
                fetch("https://example.com")  #! error
                pages = list(map(requests.get, urls))  #! error
        """,
    "what annotations say": """
        import httpx  #! review
        import requests

        class Job:
            api: requests.Session | None = None

            def __init__(self, client: httpx.Client):
                self.client = client

            def run(self, session, http: requests.Session):
                with session.begin():
                    http.post("https://example.com")  #! error
                    self.client.post("https://example.com")  #! error
                    self.api.post("https://example.com")  #! error
        """,
    "blocking inside async": """
        import time

        async def f(session):
            async with session.begin():
                time.sleep(1)  #! error
        """,
    "entering a client": """
        import httpx  #! review

        async def f(engine):
            async with engine.begin() as conn:
                async with httpx.AsyncClient() as client:  #! error
                    response = await client.get("https://example.com")  #! error
                    await conn.execute("UPDATE t SET x = :x", {"x": response.text})
        """,
    "several items, the client inside": """
        async def f(engine, make_client):
            async with engine.begin() as conn, make_client() as client:  #! error
                await conn.execute("SELECT 1")
        """,
    "databases, decorator": """
        @database.transaction()
        async def f(request):
            await database.execute("SELECT 1")
            await client.get("https://example.com")  #! error
        """,
    "peewee": """
        import requests  #! review

        def f(db):
            with db.atomic() as tx:
                requests.Session().get("https://example.com")  #! error
        """,
    "SQLAlchemy, awaited": """
        async def f(engine, redis):
            conn = await engine.connect()
            async with await conn.begin():
                await conn.execute("SELECT 1")
                await redis.set("k", "v")  #! error
        """,
    "an imported transaction of a connection": """
        from app.db import transaction

        async def f(conn):
            async with transaction(conn):
                await conn.execute("SELECT 1")
                await aiohttp_session.get("https://example.com")  #! error
        """,
}
