"""The table: what the gate must find, and where, and what it must not."""

from pathlib import Path

import pytest

from tests.review_gate.loud_flows import LOUD_FLOWS
from tests.review_gate.loud_libraries import LOUD_LIBRARIES
from tests.review_gate.quiet_flows import QUIET_FLOWS
from tests.review_gate.quiet_libraries import QUIET_LIBRARIES
from tests.review_gate.quiet_mended import QUIET_MENDED
from tests.review_gate.snippets import check, expected

LOUD = LOUD_LIBRARIES | LOUD_FLOWS
QUIET = {
    f"{group}: {name}": code
    for group, snippets in (
        ("libraries", QUIET_LIBRARIES),
        ("flows", QUIET_FLOWS),
        ("mended", QUIET_MENDED),
    )
    for name, code in snippets.items()
}


@pytest.mark.parametrize("name", LOUD)
def test_what_waits_inside_a_transaction_is_found(name: str, tmp_path: Path) -> None:
    found = [(one.kind, one.line) for one in check(tmp_path, LOUD[name])]
    assert found == expected(LOUD[name])
    assert ("error" in dict(found)) == ("error" in LOUD[name])


@pytest.mark.parametrize("name", QUIET)
def test_what_does_not_is_left_alone(name: str, tmp_path: Path) -> None:
    assert check(tmp_path, QUIET[name]) == []
