"""Speed and memory of the intake: `python benchmarks/ingest.py [--quick] [part…]`.

Prints one table of figures and ratios beside their targets. Needs Dovecot, and the extra `test`.
"""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
# Run as a script, Python looks for modules beside it; replicas and rivals are started from here.
sys.path[0] = str(ROOT)
os.chdir(ROOT)
# Without Dovecot: an error that says so, not a skipped test.
os.environ["MAILROOM_REQUIRE_SERVERS"] = "1"
# The embedded PostgreSQL says this at its import, on a machine without a login session.
warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")

from benchmarks import idle, latency, memory, throughput  # noqa: E402
from benchmarks.report import Figure, print_figures  # noqa: E402
from benchmarks.stage import open_stage  # noqa: E402

PARTS: dict[str, Callable[..., list[Figure]]] = {
    "throughput": throughput.measure,
    "latency": latency.measure,
    "memory": memory.measure,
    "idle": idle.measure,
}


@click.command()
@click.option("--quick", is_flag=True, help="Smaller amounts, one run each.")
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
def main(parts: tuple[str, ...], *, quick: bool) -> None:
    """Speed and memory of the intake: all PARTS, or those that are named."""
    figures: list[Figure] = []
    for name in parts or PARTS:
        with open_stage() as stage:
            figures += PARTS[name](stage, quick=quick)
    print_figures(figures)


if __name__ == "__main__":
    main()
