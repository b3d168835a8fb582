"""Speed and memory of the intake: `python benchmarks/ingest.py [--quick] [part…]`.

Prints one table of figures and ratios beside their targets. Needs Dovecot, and the extra `test`.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Run as a script, Python looks for modules beside it; replicas and rivals are started from here.
sys.path[0] = str(ROOT)
os.chdir(ROOT)

from benchmarks import idle, latency, memory, throughput  # noqa: E402
from benchmarks.stage import Part, create_command  # noqa: E402

PARTS: dict[str, Part] = {
    "throughput": throughput.measure,
    "latency": latency.measure,
    "memory": memory.measure,
    "idle": idle.measure,
}

main = create_command("Speed and memory of the intake", PARTS)


if __name__ == "__main__":
    main()
