"""The demo as newcomers run it: the tour ends by itself, and what it prints works as pasted."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from service.settings import Settings
from tests.servers.process import require_program

UNSET = {name.upper() for name in Settings.model_fields}
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in UNSET},
    "HTTP_BIND": "127.0.0.1:0",
    "COLUMNS": "130",
}
DEMO = [sys.executable, "-m", "service", "demo"]


def test_the_tour_shows_rows_and_an_awaited_code_and_exits_0() -> None:
    done = subprocess.run(
        [*DEMO, "--once"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "6 mails became 5 requests: the repeated one is not stored twice." in done.stdout
    assert "Coffee beans, 12 kg: 94.80 EUR" in done.stdout, "the text of a PDF"
    assert "4712 | Thé vert, 100 g | 30 | 4.50" in done.stdout, "a row of a workbook"
    assert re.search(
        r"^  curl -gsS -H 'Authorization: Bearer mr_[\w-]+' 'http://", done.stdout, re.M
    )
    assert re.search(
        r"^The mail was sent 1 s later; the answer after \d\.\d s:$", done.stdout, re.M
    )
    assert re.search(r"^  codes    \d{6}$", done.stdout, re.M)
    assert re.search(
        r"^  links    https://example.org/verify\?token=\w+  \(Verify my address\)$",
        done.stdout,
        re.M,
    )


@contextmanager
def running_demo() -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The demo once it waits for mails, and the commands that it tells to try then."""
    with subprocess.Popen(DEMO, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("It goes on until Ctrl-C"):
                    break
            commands = []
            for line in process.stdout:
                if line.startswith("  "):
                    commands.append(line.strip())
                if line.startswith("The API is explained"):
                    break
            yield process, commands
        finally:
            if process.poll() is None:  # killed, it would leave its PostgreSQL behind
                process.send_signal(signal.SIGINT)
                process.wait(15)


def test_the_lines_that_it_prints_work_as_pasted() -> None:
    require_program("curl")
    with running_demo() as (process, (wait, send, show)):
        with subprocess.Popen(["sh", "-c", wait], stdout=subprocess.PIPE) as waiting:
            subprocess.run(["sh", "-c", send], check=True, timeout=10)
            answer, _ = waiting.communicate(timeout=20)
        (message,) = json.loads(answer)["data"]["collection"]
        assert (message["subject"], message["message"]) == ("hello", "It works.")
        shown = subprocess.run(["sh", "-c", show], check=True, timeout=10, capture_output=True)
        (request,) = json.loads(shown.stdout)["data"]["collection"]
        (pages,) = [one["result"]["pages"] for one in request["attachments"] if one["result"]]
        assert pages[0].startswith("Invoice 2041\nCoffee beans, 12 kg: 94.80 EUR")
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0
