"""What the reading process may take of the machine; for the process that calls these functions.

Where the platform has no such limits, the parent's time limit remains.
"""

import math
import sys
import time
from types import ModuleType

resource: ModuleType | None
try:
    import resource
except ImportError:
    resource = None

MAX_OPEN_FILES = 32


def limit_process(memory_bytes: int) -> None:
    """Bound the address space; no file is written, no core is dumped, few files are open."""
    if resource is None:
        return
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
    }
    if sys.platform != "darwin":  # which knows this limit, but refuses to set it
        bounds[resource.RLIMIT_AS] = memory_bytes
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            bound = min(bound, hard)
        resource.setrlimit(kind, (bound, bound))


def allow_cpu(seconds: float) -> None:
    """End this process when it takes more CPU from now on: it may have lost its parent."""
    if resource is None:
        return
    soft = math.ceil(time.process_time() + seconds) + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def peak_memory_bytes() -> int:
    """The most that was resident since the start of the program.

    Where it can be had elsewhere it is not ru_maxrss: that one begins, on Linux, with what the
    parent had when it started this process.
    """
    try:
        with open("/proc/self/status", "rb", buffering=0) as status:
            return int(status.read().partition(b"VmHWM:")[2].split(maxsplit=1)[0]) * 1024
    except (OSError, LookupError):
        pass
    if resource is None:
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
