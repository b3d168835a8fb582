"""The background loops. Each is a `run` for ever around one pass that can be called alone."""
