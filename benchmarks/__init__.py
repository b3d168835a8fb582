"""What mailroom costs, measured beside its rivals on the same machine in the same run."""
