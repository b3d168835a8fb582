"""Every environment variable with its unit and default, as one frozen object, validated once.

A wrong value raises `SettingsError` with one line that names the variable.
"""

import base64
import re
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import platformdirs
from cryptography.fernet import Fernet, MultiFernet
from pydantic import AfterValidator, Field, PositiveInt, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.errors import SettingsError
from service.model import Limits, ReadLimits

Seconds = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)]  # up to a year
WEBHOOK_SECRET_MIN_BYTES = 24
DNS_PORT = 53

# Of each pair the first says nothing without the second.
_COMPANIONS = (
    ("llm_base_url", "llm_model"),
    ("llm_model", "llm_base_url"),
    ("llm_api_key", "llm_base_url"),
    ("llm_schema_file", "llm_base_url"),
    ("webhook_url", "webhook_secret"),
    ("webhook_secret", "webhook_url"),
    ("enrich_api_key", "enrich_api_url"),
)


def _default_data_dir() -> Path:
    return Path(platformdirs.user_data_dir("mailroom"))


def _check_bind(value: str) -> str:
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080")
    return value


def _create_check(pattern: str, example: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"must be like {example}")
        return value

    return AfterValidator(check)


HttpUrl = Annotated[
    str, _create_check(r"https?://[^\s/?#]+[^\s?#]*", "https://api.example.com/v1, without a query")
]
HookUrl = Annotated[
    str, _create_check(r"https?://[^\s/?#]+[^\s#]*", "https://hooks.example.com/mail")
]
DatabaseUrl = Annotated[
    str, _create_check(r"postgres(ql)?://.*", "postgresql://user:password@db.example.com/mailroom")
]


def _check_dns_servers(value: str) -> str:
    parse_dns_servers(value)
    return value


def _check_keys(value: str) -> str:
    parse_keys(value)
    return value


def _check_webhook_secret(value: str) -> str:
    try:
        octets = base64.b64decode(value.removeprefix("whsec_"), validate=True)
    except ValueError:
        octets = b""
    if len(octets) < WEBHOOK_SECRET_MIN_BYTES:
        raise ValueError(
            f"must be whsec_ and the base64 of at least {WEBHOOK_SECRET_MIN_BYTES} random bytes; "
            "make one with: python -c 'import base64, secrets; "
            'print("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())\''
        )
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


def parse_dns_servers(value: str) -> list[tuple[str, int]]:
    """IP addresses and ports (53 where none is given) of IP or IP:PORT, comma-separated.

    ValueError when malformed.
    """
    return [_parse_dns_server(one.strip()) for one in value.split(",")]


def _parse_dns_server(value: str) -> tuple[str, int]:
    with suppress(ValueError):
        return str(ip_address(value.strip("[]"))), DNS_PORT
    host, _, port = value.rpartition(":")
    with suppress(ValueError):
        if port.isdecimal() and 0 < int(port) < 65536:
            return str(ip_address(host.strip("[]"))), int(port)
    raise ValueError("must be IP or IP:PORT, comma-separated, such as 192.0.2.53,[2001:db8::1]:53")


class Settings(BaseSettings):
    """The service's settings; field names are the variables' names in lower case."""

    model_config = SettingsConfigDict(frozen=True, env_ignore_empty=True, hide_input_in_errors=True)

    database_url: DatabaseUrl | None = Field(None, repr=False)
    service_data_dir: Path = Field(default_factory=_default_data_dir)
    service_secret_key: Annotated[str, AfterValidator(_check_keys)] | None = Field(None, repr=False)
    http_bind: Annotated[str, AfterValidator(_check_bind)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    public_base_url: HttpUrl | None = None

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
    pipeline_concurrency: PositiveInt = 2
    pipeline_max_attempts: PositiveInt = 5
    read_timeout_seconds: Seconds = 60
    read_max_memory_bytes: Annotated[int, Field(ge=2**27, le=2**40)] = 536_870_912
    read_max_output_bytes: Annotated[int, Field(ge=1, le=2**27)] = 10_485_760

    llm_base_url: HttpUrl | None = None
    llm_model: str | None = None
    llm_api_key: str | None = Field(None, repr=False)
    llm_schema_file: Path | None = None
    llm_concurrency: PositiveInt = 4
    llm_timeout_seconds: Seconds = 120
    llm_max_input_chars: Annotated[int, Field(ge=1000)] = 200_000

    webhook_url: HookUrl | None = Field(None, repr=False)
    webhook_secret: Annotated[str, AfterValidator(_check_webhook_secret)] | None = Field(
        None, repr=False
    )
    webhook_allow_private: bool = False

    enrich_enabled: bool = True
    enrich_partitions: Annotated[int, Field(ge=1, le=1000)] = 12
    enrich_batch_size: Annotated[int, Field(ge=1, le=10_000)] = 200
    enrich_api_url: HttpUrl | None = None
    enrich_api_key: str | None = Field(None, repr=False)
    enrich_dns_servers: Annotated[str, AfterValidator(_check_dns_servers)] | None = None
    enrich_concurrency: Annotated[int, Field(ge=1, le=1000)] = 16
    enrich_timeout_seconds: Seconds = 10
    enrich_domain_ttl_seconds: Seconds = 86_400

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] | None = None

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the environment; `overrides` win over it."""
        try:
            settings = cls(**overrides)
        except ValidationError as error:
            first = error.errors()[0]
            variable, reason = str(first["loc"][0]).upper(), first["msg"]
            raise SettingsError(f"{variable}: {reason.removeprefix('Value error, ')}") from None
        settings._check_companions()
        return settings

    def _check_companions(self) -> None:
        for variable, companion in _COMPANIONS:
            if getattr(self, variable) is not None and getattr(self, companion) is None:
                raise SettingsError(f"{companion.upper()}: needed with {variable.upper()}")

    @property
    def limits(self) -> Limits:
        """The byte limits of the triage."""
        return Limits(self.extract_max_bytes, self.inline_image_max_bytes)

    @property
    def sends_webhooks(self) -> bool:
        """Whether completed requests are announced."""
        return self.webhook_url is not None

    @property
    def read_limits(self) -> ReadLimits:
        """What the reading of one file may take."""
        return ReadLimits(
            memory_bytes=self.read_max_memory_bytes,
            wall_seconds=self.read_timeout_seconds,
            output_bytes=self.read_max_output_bytes,
        )

    @property
    def domain_claim_seconds(self) -> float:
        """For how long a domain is claimed: three times it is waited for (see `check.api`)."""
        return 4 * self.enrich_timeout_seconds

    @property
    def dns_servers(self) -> list[tuple[str, int]] | None:
        """Address and port of each DNS server to ask; None: those that the system asks."""
        return parse_dns_servers(self.enrich_dns_servers) if self.enrich_dns_servers else None

    @property
    def bind(self) -> str:
        """Where HTTP listens: HTTP_BIND, else every address on PORT, else loopback."""
        if self.http_bind is not None:
            return self.http_bind
        return f"0.0.0.0:{self.port}" if self.port is not None else "127.0.0.1:8080"
