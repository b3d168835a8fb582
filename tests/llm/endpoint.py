"""A chat endpoint over real HTTP that answers what a script says, and documents to ask it about."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import REGISTRY

from service.extract.llm import Llm, Patience, open_llm
from service.extract.prompt import Document
from service.settings import Settings
from tests.scripted_http import Reply, Request, ScriptedHttp

API_KEY = "sk-test-4f/9e+a0"
MODEL = "test-model"
HASTY = Patience(first_wait_seconds=0.01, max_wait_seconds=0.02, jitter_seconds=0.01)
OUTPUT: dict[str, Any] = {
    "document_type": "order",
    "document_number": "4711",
    "document_date": "2026-03-02",
    "currency": "EUR",
    "total": None,
    "line_items": [
        {
            "description": "A4 paper",
            "article_number": None,
            "quantity": 2,
            "unit": "box",
            "unit_price": 19.9,
            "amount": 39.8,
            "currency": "EUR",
            "source": "document",
        }
    ],
}
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def completion(
    content: object = None,
    *,
    finish_reason: str = "stop",
    refusal: str | None = None,
    usage: object = USAGE,
    **more: Any,
) -> Reply:
    """A 200 as chat endpoints give it; by default its content is `OUTPUT`."""
    if content is None and refusal is None:
        content = json.dumps(OUTPUT)
    message = {"role": "assistant", "content": content, "refusal": refusal}
    choice = {"index": 0, "finish_reason": finish_reason, "message": message}
    document = {"object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}
    return Reply.json(document, **more)


def failure(status: int, message: str = "Something is wrong.", **headers: str) -> Reply:
    """An error as chat endpoints give it; `Retry_After` is a header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply.json({"error": {"message": message, "code": None}}, status, headers=named)


def document(text: str = "2 boxes A4 paper", **more: Any) -> Document:
    """A file of one page whose mail has a text."""
    result = json.dumps({"text": text, "pages": [text], "warnings": []}).encode()
    fields = {
        "filename": "order.pdf",
        "context_text": "Monday, please.",
        "gives_context_rows": True,
    }
    return Document(result=result, **{**fields, **more})


@asynccontextmanager
async def asking(
    server: ScriptedHttp, patience: Patience = HASTY, **settings: Any
) -> AsyncIterator[Llm]:
    """The LLM step with the server as its endpoint."""
    fields = {"llm_base_url": f"{server.url}/v1", "llm_model": MODEL, "llm_api_key": API_KEY}
    async with open_llm(Settings(**{**fields, **settings}), patience) as llm:
        assert llm is not None
        yield llm


async def ask(server: ScriptedHttp, asked: Document | None = None, **settings: Any) -> Any:
    """The answer on one document."""
    async with asking(server, **settings) as llm:
        return await llm.ask(asked or document())


def sent(request: Request) -> Any:
    """The JSON of a recorded call."""
    return json.loads(request.body)


def counted(name: str, **labels: str) -> float:
    """What a metric says now."""
    return REGISTRY.get_sample_value(f"mailroom_llm_{name}", labels) or 0
