"""The HTTP side: the API, its documentation, liveness, readiness and metrics."""
