"""The JSON schema that an LLM's answer has to fit: line items by default, else a file's.

Pure but for reading that file. A file that is missing or holds no usable schema is a
`SettingsError` of one line; nothing that a schema refers to is ever fetched.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from service.errors import SettingsError

MAX_FAULTS = 3
MAX_FAULT_CHARS = 200


def _nullable(kind: str, description: str) -> dict[str, Any]:
    return {"type": [kind, "null"], "description": description}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    # What strict mode asks for: every property required, no other allowed.
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LINE_ITEM = _object(
    description=_nullable("string", "The line's text: goods, service or position."),
    article_number=_nullable("string", "Article, part or order number of the line."),
    quantity=_nullable("number", "How many, or how much of the unit."),
    unit=_nullable("string", "Unit of the quantity as it stands: pcs, kg, h."),
    unit_price=_nullable("number", "Price of one unit."),
    amount=_nullable("number", "Amount of the whole line; negative for a credit."),
    currency=_nullable("string", "ISO 4217 code of the line's amounts."),
    source={
        "type": "string",
        "enum": ["document", "mail"],
        "description": "Where the line stands: in the document (also when it stands in both), or "
        "in the mail's text alone.",
    },
)
LINE_ITEMS = _object(
    document_type=_nullable("string", "In one or two English words: invoice, order, offer."),
    document_number=_nullable("string", "The number that the sender gave it."),
    document_date=_nullable("string", "Its own date, ISO 8601: YYYY-MM-DD."),
    currency=_nullable("string", "ISO 4217 code of its amounts."),
    total=_nullable("number", "The total to pay as it is stated, taxes included."),
    line_items={"type": "array", "items": LINE_ITEM},
)


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """A schema as it is sent, and the validator that an answer has to pass."""

    name: str
    document: dict[str, Any]
    is_strict: bool
    validator: Validator

    @property
    def response_format(self) -> dict[str, Any]:
        """The request's `response_format`."""
        schema = {"name": self.name, "strict": self.is_strict, "schema": self.document}
        return {"type": "json_schema", "json_schema": schema}

    def describe_faults(self, output: object) -> str | None:
        """What in the output violates the schema, the first few faults; None when it fits.

        RecursionError when it is nested too deep.
        """
        errors = islice(self.validator.iter_errors(output), MAX_FAULTS)
        faults = [
            f"{error.json_path[:MAX_FAULT_CHARS]}: {error.message[:MAX_FAULT_CHARS]}"
            for error in errors
        ]
        return "; ".join(faults) or None


def read_schema(path: Path | None) -> OutputSchema:
    """The schema of LLM_SCHEMA_FILE, or the one for line items. SettingsError."""
    if path is None:
        return OutputSchema("line_items", LINE_ITEMS, True, Draft202012Validator(LINE_ITEMS))
    document = _load(path)
    # Not every schema can be had in strict mode; the answer is validated here anyway.
    return OutputSchema("extraction", document, False, _create_validator(document))


def _load(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise _refusal(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _refusal(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _refusal(f"{path} does not hold a JSON object")
    return document


def _create_validator(document: dict[str, Any]) -> Validator:
    try:
        kind = _validator_class(document.get("$schema"))
        kind.check_schema(document)
        _check_references(document)
    except SchemaError as error:
        raise _refusal(f"not a JSON schema: {error.json_path}: {error.message}") from None
    except (ValueError, RecursionError) as error:  # a URI that is none, or endless nesting
        raise _refusal(f"not a JSON schema: {error}") from None
    # An empty registry: what is not in the file is not fetched from elsewhere either.
    return kind(document, registry=Registry())


def _validator_class(dialect: object) -> type[Validator]:
    kind: type[Validator] | None = None
    if dialect is None:
        kind = Draft202012Validator
    elif isinstance(dialect, str):
        kind = validator_for({"$schema": dialect}, default=None)
    if kind is None:
        raise _refusal(f"unknown $schema {dialect!r}")
    return kind


def _check_references(document: dict[str, Any]) -> None:
    resource = Resource.from_contents(document, default_specification=DRAFT202012)
    resolver = Registry().resolver_with_root(resource)
    for reference in _references(document):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise _refusal(f"$ref {reference!r} leads to nothing in the file") from None


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from _references(child)


def _refusal(reason: str) -> SettingsError:
    one_line = " ".join(reason.split())
    return SettingsError(f"LLM_SCHEMA_FILE: {one_line[:500]}")
