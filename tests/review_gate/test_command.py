"""The command: its exit codes and its three formats."""

import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from service.review_gate.__main__ import main

ROOT = Path(__file__).parents[2]
BAD = """\
import httpx

async def f(db):
    async with db.transaction() as conn:
        await helper(conn)
        await bus.publish(1)  # review-gate: ok — local

async def helper(conn):
    await client.get("https://example.com/a?b=100%25,c")
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def write(folder: Path, code: str, name: str = "bad.py") -> Path:
    path = folder / name
    path.write_text(code, "utf-8")
    return path


def test_this_project_passes() -> None:
    result = run(ROOT / "service")
    assert result.exit_code == 0, result.output


def test_exit_codes(tmp_path: Path) -> None:
    good = write(tmp_path, "x = 1\n", "good.py")
    review = write(tmp_path, "import httpx\nwith db.begin():\n    pass\n", "review.py")
    bad = write(tmp_path, BAD)
    assert run(good).exit_code == 0
    assert run(review).exit_code == 0
    assert run(good, review, bad).exit_code == 1
    assert run(tmp_path).exit_code == 1
    assert run(good, tmp_path / "missing.py").exit_code == 2
    assert run().exit_code == 2
    assert run("--format", "xml", good).exit_code == 2


def test_an_unreadable_file_does_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path, "(", "a.py")
    write(tmp_path, BAD, "b.py")
    output = run(tmp_path).output
    assert "a.py:1:1: error: cannot be read" in output
    assert "b.py:9:11: error: " in output


def test_text(tmp_path: Path) -> None:
    path = write(tmp_path, BAD)
    assert run(path).output.splitlines() == [
        f"{path}:1:1: review: imports httpx (line 1) and opens transactions (line 4); a person has "
        "to see that none is used inside the other",
        f"{path}:6:15: let pass: `bus.publish(1)` is awaited inside the transaction that "
        "`db.transaction()` opens in line 4; the reason given: local",
        f"{path}:9:11: error: `client.get('https://example.com/a?b=100%25,c')` is awaited inside "
        "the transaction that `db.transaction()` opens in line 4, by way of helper (line 5); "
        "commit first, await it, and write in a short new transaction",
        "review gate: 1 files, 1 errors, 1 to review, 1 let pass",
    ]


def test_github(tmp_path: Path) -> None:
    path = write(tmp_path, BAD, "odd, 100%: name.py")
    review, passed, error, _ = run("--format", "github", path).output.splitlines()
    shown = str(path).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    title = "title=review gate%3A"
    assert review.startswith(
        f"::warning file={shown},line=1,col=1,{title} transaction-and-client::imports httpx "
    )
    assert passed.startswith(f"::notice file={shown},line=6,col=15,{title} foreign-await::`bus.")
    assert error.startswith(f"::error file={shown},line=9,col=11,{title} foreign-await::`client.")
    assert "b=100%2525,c" in error


def test_a_name_does_not_become_a_command(tmp_path: Path) -> None:
    path = write(tmp_path, "(", "a\n::stop-commands::x\r.py")
    for form in ("text", "github"):
        assert "\n::stop" not in run("--format", form, path).output


def test_json(tmp_path: Path) -> None:
    path = write(tmp_path, BAD)
    answer = json.loads(run("--format", "json", path).output)
    assert (answer["files"], answer["errors"], answer["reviews"]) == (1, 1, 1)
    review, passed, error = answer["findings"]
    assert (review["kind"], passed["kind"], passed["reason"]) == ("review", "passed", "local")
    assert error == {
        "kind": "error",
        "rule": "foreign-await",
        "path": str(path),
        "line": 9,
        "column": 11,
        "message": "`client.get('https://example.com/a?b=100%25,c')` is awaited inside the "
        "transaction that `db.transaction()` opens in line 4",
        "transaction_line": 4,
        "way": [{"function": "helper", "line": 5}],
        "reason": None,
    }


def test_it_runs_as_a_module_on_a_name_of_no_encoding(tmp_path: Path) -> None:
    (tmp_path / "\udcff.py").write_text("(")
    write(tmp_path, BAD)
    done = subprocess.run(
        [sys.executable, "-m", "service.review_gate", tmp_path],
        cwd=ROOT,
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert (done.returncode, done.stderr) == (1, b"")
