"""LLM_SCHEMA_FILE: one's own schema, and the one line that says what is wrong with it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from service.errors import ReadFailed, SettingsError
from service.extract.llm import open_llm
from service.extract.llm_schema import LINE_ITEMS, read_schema
from service.settings import Settings
from tests.llm.endpoint import MODEL, OUTPUT, ask, completion, sent
from tests.scripted_http import ScriptedHttp

OWN: dict[str, Any] = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
    "$defs": {"row": {"type": "object", "required": ["sku"]}},
}


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(OWN), "utf-8")
    return path


def objects(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for child in schema.values():
            yield from objects(child)


def test_the_default_is_what_strict_mode_takes() -> None:
    Draft202012Validator.check_schema(LINE_ITEMS)
    assert read_schema(None).is_strict
    assert len(list(objects(LINE_ITEMS))) == 2
    for schema in objects(LINE_ITEMS):
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])


def test_in_the_default_everything_may_be_unknown() -> None:
    schema = read_schema(None)
    line = {**dict.fromkeys(OUTPUT["line_items"][0]), "source": "mail"}
    unknown = {**dict.fromkeys(OUTPUT), "line_items": [line]}
    assert schema.describe_faults(OUTPUT) is None
    assert schema.describe_faults(unknown) is None


async def test_a_schema_of_ones_own(schema_file: Path) -> None:
    with ScriptedHttp(completion('{"rows": [{"sku": 1}]}')) as server:
        answer = await ask(server, llm_schema_file=schema_file)
    assert answer["output"] == {"rows": [{"sku": 1}]}
    body = sent(server.requests[0])
    told = {"name": "extraction", "strict": False, "schema": OWN}
    assert body["response_format"] == {"type": "json_schema", "json_schema": told}
    assert json.dumps(OWN) in body["messages"][0]["content"]


async def test_an_answer_has_to_fit_ones_own_schema(schema_file: Path) -> None:
    told = r"rows\[0\]: 'sku' is a required property"
    with (
        ScriptedHttp(completion('{"rows": [{}]}')) as server,
        pytest.raises(ReadFailed, match=told),
    ):
        await ask(server, llm_schema_file=schema_file)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "does not hold a JSON object"),
        (b"true", "does not hold a JSON object"),
        (b'{"type": "objekt"}', "not a JSON schema: $.type"),
        (b'{"properties": []}', "not a JSON schema: $.properties"),
        (b'{"pattern": "(["}', "not a JSON schema: $.pattern"),
        (b'{"$schema": "https://json-schema.org/draft/2099-01/schema"}', "unknown $schema"),
        (b'{"$schema": 7}', "unknown $schema"),
        (b'{"$schema": "http://[::1"}', "not a JSON schema: "),
        (b'{"$ref": "http://[::1"}', "leads to nothing in the file"),
        (b'{"not":' * 500 + b"{}" + b"}" * 500, "not a JSON schema: "),
        (b'{"$ref": "#/$defs/nowhere"}', "$ref '#/$defs/nowhere' leads to nothing"),
        (b'{"$ref": "https://example.com/schema.json"}', "leads to nothing in the file"),
        (b'{"$ref": "file:///etc/hostname"}', "leads to nothing in the file"),
    ],
)
async def test_a_broken_schema_stops_the_start(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(content)
    line = await refusal(path)
    assert line.startswith("LLM_SCHEMA_FILE: ")
    assert told in line
    assert "\n" not in line


async def test_a_missing_schema_stops_the_start(tmp_path: Path) -> None:
    assert "No such file" in await refusal(tmp_path / "nowhere.json")
    assert "directory" in await refusal(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-07/schema#", None])
def test_older_drafts_and_byte_order_marks_are_taken(
    tmp_path: Path, encoding: str, draft: str | None
) -> None:
    path = tmp_path / "schema.json"
    schema = {**OWN, **({"$schema": draft} if draft else {})}
    path.write_text(json.dumps(schema), encoding)
    assert read_schema(path).describe_faults({"rows": 1}) is not None


async def test_a_schema_that_refers_to_itself_for_ever_costs_only_its_answers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"$ref": "#"}')
    with ScriptedHttp(completion("{}")) as server, pytest.raises(ReadFailed, match="too deep"):
        await ask(server, llm_schema_file=path)


async def refusal(path: Path) -> str:
    settings = Settings(
        llm_base_url="https://llm.example.com/v1", llm_model=MODEL, llm_schema_file=path
    )
    with pytest.raises(SettingsError) as caught:
        async with open_llm(settings):
            raise AssertionError("it was opened")
    return str(caught.value)
