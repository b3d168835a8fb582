"""The HTTP side: liveness, readiness and metrics."""
