"""Files that cannot be read or parsed: each is an error of its own, the others are checked."""

import os
import time
from pathlib import Path

import pytest

from service.review_gate.findings import Finding
from service.review_gate.gate import check_file
from service.review_gate.sources import MAX_BYTES, find_files

TANGLED_MAX_SECONDS = 20  # a tenth is enough; without a bound some would take years
BLOCK = b"with db.begin():\n    pass\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"def f(:\n", "invalid syntax", id="syntax"),
        pytest.param(b"print 'x'\n", "Missing parentheses", id="Python 2"),
        pytest.param("x = 'é'\n".encode("latin-1"), "utf-8", id="no UTF-8"),
        pytest.param(b"# coding: nonsense\n", "unknown encoding", id="no encoding"),
        pytest.param(b"x = 1\0\n", "null bytes", id="NUL"),
        pytest.param(b"(" * 5000, "", id="parentheses"),
        pytest.param(b"x" + b".a" * 100_000, "nested too deeply", id="attributes"),
        pytest.param(b"1" + b"+1" * 100_000, "nested too deeply", id="a sum"),
        pytest.param(b"x = " + b"not " * 100_000 + b"1", "nested too deeply", id="not not"),
        pytest.param(b"x = 1\n" * 1_000_000, f"larger than {MAX_BYTES:,} bytes", id="huge"),
    ],
)
def test_content(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_bytes(content)
    (found,) = check_file(str(path))
    assert (found.kind, found.rule, found.path) == ("error", "unreadable", str(path))
    assert reason in found.message


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xef\xbb\xbfx = 1\n", id="byte order mark"),
        pytest.param("# coding: latin-1\nx = 'é'\n".encode("latin-1"), id="another encoding"),
        pytest.param(b"x = '\\d'\nx is 1\nassert (x, 1)\n", id="what Python warns of"),
        pytest.param(b"", id="empty"),
        pytest.param(BLOCK + b"x = ''" + b" + 'a'" * 900, id="a long sum"),
        pytest.param(BLOCK + b"if x: pass\n" + b"elif y: pass\n" * 900, id="many branches"),
    ],
)
def test_content_that_is_fine(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_bytes(content)
    assert check_file(str(path)) == []


@pytest.mark.parametrize(
    "step",
    ["v{n} = v{m} if q else v{m}", "v{n} = [*v{m}, *v{m}]", "v{n} = asyncio.gather(v{m}, v{m})"],
)
def test_variables_that_lead_to_each_other_in_many_ways(step: str, tmp_path: Path) -> None:
    steps = [step.format(n=n, m=n - 1) for n in range(1, 60)]
    lines = ["async def f(conn, v0):", *steps, "async with conn.transaction():", " await v59"]
    assert _seconds_to_check(tmp_path, "\n    ".join(lines)) < TANGLED_MAX_SECONDS


def test_functions_that_lead_to_each_other_in_many_ways(tmp_path: Path) -> None:
    one = "async def f(c):\n    async with c.begin(): await g(c)\nasync def g(c): await f(c)\n"
    assert _seconds_to_check(tmp_path, one * 800) < TANGLED_MAX_SECONDS


def _seconds_to_check(tmp_path: Path, code: str) -> float:
    path = tmp_path / "file.py"
    path.write_text(code, "utf-8")
    started = time.monotonic()
    (found,) = check_file(str(path))
    assert found.message == "cannot be read: too tangled to follow"
    return time.monotonic() - started


def test_other_kinds_of_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "dangling.py").symlink_to("nowhere")
    for name in ("fifo.py", "dangling.py", "missing.py"):
        (found,) = check_file(str(tmp_path / name))
        assert found.rule == "unreadable"


def test_columns_count_characters(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text("async def f(é):\n    with é.begin(): ü = 'ß'; await x.y()\n", "utf-8")
    (found,) = check_file(str(path))
    assert (found.line, found.column) == (2, 36)


def test_which_files_of_a_folder(tmp_path: Path) -> None:
    wanted = ["a.py", "deep/er/b.py", "env.py", "odd.py/c.py"]
    others = [
        ".hidden/x.py",
        "__pycache__/x.py",
        "build/x.py",
        "data.txt",
        "env/lib/x.py",
        "node_modules/x.py",
        "venv/x.py",
    ]
    for name in (*wanted, *others, "env/pyvenv.cfg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    found = list(find_files([str(tmp_path), str(tmp_path / "data.txt")]))
    assert not any(isinstance(one, Finding) for one in found)
    names = [os.path.relpath(str(one), tmp_path) for one in found]
    assert sorted(names) == sorted([*wanted, "data.txt"])
