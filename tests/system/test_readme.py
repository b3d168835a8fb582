"""What the README says, run: the client's example, against the demo."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.system.test_demo import running_demo

README = Path(__file__).parents[2] / "README.md"


def test_the_example_of_the_client_passes_against_the_demo(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "test_example.py").write_text(example)
    with running_demo() as (_, (wait, send, _show)):
        found = re.search(r"Bearer (?P<token>[\w-]+)' '(?P<url>http://[\d.:]+)/", wait)
        assert found is not None
        environment = {
            **os.environ,
            "MAILROOM_TOKEN": found["token"],
            "MAILROOM_URL": found["url"],
            "SMTP_PORT": send.rpartition(":")[2],
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
