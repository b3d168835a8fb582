"""The workflow's shell scripts, run in a repository of their own with a `gh` that only notes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "review-gate.yml"
LABEL = "review: transaction and I/O"
GOOD = "async def f(db):\n    async with db.transaction() as conn:\n        await conn.execute()\n"
REVIEW = f"import httpx\n{GOOD}"
BAD = f"{GOOD}        await bus.publish(1)\n"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


class Checkout:
    """What the runner has: the merge commit of a pull request, and its first parent."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.root.mkdir()
        self.steps = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["review-gate"]["steps"]
        self._calls = folder / "gh-calls"
        self._output = folder / "output"
        self._output.touch()
        commands = folder / "bin"
        commands.mkdir()
        self.write_command(commands / "gh", '{ printf "%s|" "$@"; echo; } >>"$GH_CALLS"')
        self.write_command(commands / "python", f'exec "{sys.executable}" "$@"')
        self._environment = {
            "GH_CALLS": str(self._calls),
            "GITHUB_OUTPUT": str(self._output),
            "HOME": str(folder),
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RUNNER_TEMP": str(folder),
        }
        self.git("init", "--quiet")
        self.commit({"unchanged.py": BAD, "deleted.py": BAD, "renamed.py": GOOD})

    def commit(self, files: dict[str, str], *deleted: str) -> None:
        for name, code in files.items():
            (self.root / name).write_text(code, "utf-8")
        for name in deleted:
            (self.root / name).unlink()
        self.git("add", "--all")
        author = ("-c", "user.name=A", "-c", "user.email=a@example.com")
        self.git(*author, "commit", "--quiet", "--message", "change")

    def check(self) -> subprocess.CompletedProcess[str]:
        """The step that runs the gate."""
        return self._run(self.steps[3]["run"], {})

    @property
    def needs_review(self) -> bool:
        return self._output.read_text() == "needs_review=true\n"

    def label(self, **given: str) -> tuple[list[list[str]], str]:
        """The step that labels: the calls of gh, and what it prints."""
        step = self.steps[4]
        values = {
            **{name: value for name, value in step["env"].items() if "${{" not in value},
            "REPOSITORY": "example/project",
            "NUMBER": "7",
            "HAS_LABEL": "false",
        }
        done = self._run(step["run"], values | given)
        assert done.returncode == 0, done.stderr
        calls = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [call.split("|")[:-1] for call in calls], done.stdout

    def _run(self, script: str, values: dict[str, str]) -> subprocess.CompletedProcess[str]:
        # As GitHub runs `shell: bash`.
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.root,
            env=self._environment | values,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.root, env=self._environment, check=True)

    @staticmethod
    def write_command(path: Path, line: str) -> None:
        path.write_text(f"#!/usr/bin/env bash\n{line}\n")
        path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    return Checkout(tmp_path)


def test_an_error_fails_and_asks_for_a_review(checkout: Checkout) -> None:
    checkout.commit({"new.py": BAD}, "deleted.py")
    done = checkout.check()
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=new.py,line=4,")
    assert "unchanged.py" not in done.stdout
    assert checkout.needs_review


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        pytest.param(REVIEW, True, id="review"),
        pytest.param(f"{BAD.rstrip()}  # review-gate: ok — local\n", True, id="let pass"),
        pytest.param(GOOD, False, id="good"),
    ],
)
def test_without_an_error_it_passes(code: str, asks: bool, checkout: Checkout) -> None:
    checkout.commit({"new.py": code})
    assert checkout.check().returncode == 0
    assert checkout.needs_review == asks


def test_no_file_of_the_program_is_changed(checkout: Checkout) -> None:
    (checkout.root / "tests").mkdir()
    checkout.commit({"notes.md": "x", "tests/test_x.py": BAD}, "deleted.py")
    assert checkout.check().returncode == 0
    assert not checkout.needs_review


def test_names_are_only_names(checkout: Checkout, tmp_path: Path) -> None:
    checkout.commit({"--help.py": GOOD, "$(touch x);`touch y`.py": BAD, "a\nb c.py": BAD})
    (checkout.root / "link.py").symlink_to(tmp_path)
    checkout.commit({"--format": "", "'.py": GOOD})
    checkout.git("reset", "--quiet", "--soft", "HEAD~2")
    checkout.commit({})
    done = checkout.check()
    assert done.returncode == 1
    assert done.stdout.count("::error") == 2
    assert "review gate: 4 files, 2 errors" in done.stdout
    assert not {"x", "y"} & set(os.listdir(checkout.root))


def test_the_label_is_made_and_put_on_once(checkout: Checkout) -> None:
    calls, _ = checkout.label()
    assert calls[0][:3] == ["label", "create", LABEL]
    assert calls[1][1:4] == ["repos/example/project/issues/7/labels", "-f", f"labels[]={LABEL}"]
    assert calls[2][1] == "repos/example/project/issues/7/comments"
    assert calls[2][3].startswith("body=This pull request ")
    assert len(calls) == 3


def test_who_has_the_label_hears_nothing_again(checkout: Checkout) -> None:
    assert checkout.label(HAS_LABEL="true") == ([], "")


def test_a_token_that_may_not_write_leaves_a_warning(checkout: Checkout, tmp_path: Path) -> None:
    Checkout.write_command(tmp_path / "bin" / "gh", "exit 1")
    calls, output = checkout.label()
    assert calls == []
    assert output.startswith("::warning ")


def test_what_the_workflow_may(checkout: Checkout) -> None:
    text = WORKFLOW.read_text("utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {
        "contents": "read",
        "issues": "write",
        "pull-requests": "write",
    }
    # Nothing that a stranger writes becomes part of a script.
    assert not any("${{" in step.get("run", "") for step in checkout.steps)
