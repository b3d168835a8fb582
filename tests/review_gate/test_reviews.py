"""Files that a person has to look at: those that open transactions and import a client."""

from pathlib import Path

import pytest

from tests.review_gate.snippets import check

TRANSACTION = """
async def f(db):
    async with db.transaction() as conn:
        await conn.execute("SELECT 1")
"""


@pytest.mark.parametrize(
    "imported",
    [
        "import httpx",
        "import httpx as web",
        "from httpx import AsyncClient",
        "import urllib.request",
        "from urllib import request",
        "from http import client",
        "import aiosmtplib, sys",
        "from google.cloud import storage",
        "import azure.storage.blob as blobs",
        "from botocore.exceptions import ClientError",
        "import dns.asyncresolver",
        "from redis.asyncio import Redis",
        "from motor.motor_asyncio import AsyncIOMotorClient",
        "def lazy():\n    import boto3",
        "try:\n    from imapclient import IMAPClient\nexcept ImportError:\n    pass",
    ],
)
def test_a_client_and_a_transaction(imported: str, tmp_path: Path) -> None:
    (found,) = check(tmp_path, f"{imported}\n{TRANSACTION}")
    assert (found.kind, found.rule) == ("review", "transaction-and-client")


@pytest.mark.parametrize(
    "imported",
    [
        "import urllib.parse",
        "from http import HTTPStatus",
        "from aiohttp import web",
        "import google.protobuf",
        "from . import httpx",
        "from .requests import get",
        "from redis.exceptions import RedisError",
        "import httpx_settings",
    ],
)
def test_what_is_no_client(imported: str, tmp_path: Path) -> None:
    assert check(tmp_path, f"{imported}\n{TRANSACTION}") == []


def test_it_is_told_once_a_file_with_all_lines(tmp_path: Path) -> None:
    (found,) = check(tmp_path, f"import httpx\nimport boto3\n{TRANSACTION}{TRANSACTION}")
    assert found.line == 1
    assert found.message == (
        "imports httpx (line 1), boto3 (line 2) and opens transactions (line 5, 9)"
    )


def test_begin_without_a_block_counts(tmp_path: Path) -> None:
    (found,) = check(tmp_path, "import httpx\nasync def f(conn):\n    tx = await conn.begin()\n")
    assert found.kind == "review"


def test_a_client_alone_does_not(tmp_path: Path) -> None:
    assert check(tmp_path, "import httpx\nhttpx.get('https://example.com')\n") == []
