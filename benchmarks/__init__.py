"""What mailroom costs, measured beside its rivals on the same machine in the same run."""

import os
import warnings

# Without Dovecot: an error that says so, not a skipped test.
os.environ["MAILROOM_REQUIRE_SERVERS"] = "1"
# The embedded PostgreSQL says this at its import, on a machine without a login session.
warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
