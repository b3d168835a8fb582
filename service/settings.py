"""Every environment variable with its unit and default, as one frozen object, validated once.

A wrong value raises `SettingsError` with one line that names the variable.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import platformdirs
from cryptography.fernet import Fernet, MultiFernet
from pydantic import AfterValidator, Field, PositiveInt, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.errors import SettingsError
from service.model import Limits

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _default_data_dir() -> Path:
    return Path(platformdirs.user_data_dir("mailroom"))


def _check_bind(value: str) -> str:
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080")
    return value


def _check_keys(value: str) -> str:
    parse_keys(value)
    return value


def parse_keys(value: str) -> MultiFernet:
    """Fernet keys, comma-separated; the first encrypts, all decrypt. ValueError when malformed."""
    try:
        return MultiFernet([Fernet(key.strip()) for key in value.split(",")])
    except ValueError:
        raise ValueError(
            "must be one or more Fernet keys, comma-separated; make one with: python -c "
            "'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())'"
        ) from None


class Settings(BaseSettings):
    """The service's settings; field names are the variables' names in lower case."""

    model_config = SettingsConfigDict(frozen=True, env_ignore_empty=True, hide_input_in_errors=True)

    database_url: str | None = Field(None, pattern=r"^postgres(ql)?://", repr=False)
    service_data_dir: Path = Field(default_factory=_default_data_dir)
    service_secret_key: Annotated[str, AfterValidator(_check_keys)] | None = Field(None, repr=False)
    http_bind: Annotated[str, AfterValidator(_check_bind)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    public_base_url: str | None = Field(None, pattern=r"^https?://[^\s/?#]+[^\s?#]*$")

    poll_interval_seconds: Seconds = 120
    poll_claim_limit: PositiveInt = 10
    poll_concurrency: PositiveInt = 10
    poll_timeout_seconds: Seconds = 100
    watchdog_stuck_after_seconds: Seconds = 900
    await_max_concurrent_waits: PositiveInt = 50
    await_poll_interval_seconds: Seconds = 2
    imap_timeout_seconds: Seconds = 20
    imap_max_connections: PositiveInt = 40
    rate_limit_per_minute: PositiveInt = 30
    extract_max_bytes: PositiveInt = 26_214_400
    inline_image_max_bytes: PositiveInt = 51_200
    pipeline_max_attempts: PositiveInt = 5

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] | None = None

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the environment; `overrides` win over it."""
        try:
            return cls(**overrides)
        except ValidationError as error:
            first = error.errors()[0]
            variable, reason = str(first["loc"][0]).upper(), first["msg"]
            raise SettingsError(f"{variable}: {reason.removeprefix('Value error, ')}") from None

    @property
    def limits(self) -> Limits:
        """The byte limits of the triage."""
        return Limits(self.extract_max_bytes, self.inline_image_max_bytes)

    @property
    def bind(self) -> str:
        """Where HTTP listens: HTTP_BIND, else every address on PORT, else loopback."""
        if self.http_bind is not None:
            return self.http_bind
        return f"0.0.0.0:{self.port}" if self.port is not None else "127.0.0.1:8080"
