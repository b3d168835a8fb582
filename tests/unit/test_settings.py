"""The environment's variables: defaults, wrong values in one line, and secrets that stay secret."""

from pathlib import Path

import platformdirs
import pytest
from cryptography.fernet import Fernet, InvalidToken
from pydantic import ValidationError

from service.errors import SettingsError
from service.settings import Settings, parse_keys

DEFAULTS = {
    "DATABASE_URL": None,
    "SERVICE_DATA_DIR": Path(platformdirs.user_data_dir("mailroom")),
    "SERVICE_SECRET_KEY": None,
    "HTTP_BIND": None,
    "PORT": None,
    "PUBLIC_BASE_URL": None,
    "POLL_INTERVAL_SECONDS": 120,
    "POLL_CLAIM_LIMIT": 10,
    "POLL_CONCURRENCY": 10,
    "POLL_TIMEOUT_SECONDS": 100,
    "WATCHDOG_STUCK_AFTER_SECONDS": 900,
    "AWAIT_MAX_CONCURRENT_WAITS": 50,
    "AWAIT_POLL_INTERVAL_SECONDS": 2,
    "RATE_LIMIT_PER_MINUTE": 30,
    "IMAP_TIMEOUT_SECONDS": 20,
    "IMAP_MAX_CONNECTIONS": 40,
    "EXTRACT_MAX_BYTES": 26_214_400,
    "INLINE_IMAGE_MAX_BYTES": 51_200,
    "PIPELINE_CONCURRENCY": 2,
    "PIPELINE_MAX_ATTEMPTS": 5,
    "READ_TIMEOUT_SECONDS": 60,
    "READ_MAX_MEMORY_BYTES": 512 * 1024 * 1024,
    "READ_MAX_OUTPUT_BYTES": 10 * 1024 * 1024,
    "LLM_BASE_URL": None,
    "LLM_MODEL": None,
    "LLM_API_KEY": None,
    "LLM_SCHEMA_FILE": None,
    "LLM_CONCURRENCY": 4,
    "LLM_TIMEOUT_SECONDS": 120,
    "LLM_MAX_INPUT_CHARS": 200_000,
    "WEBHOOK_URL": None,
    "WEBHOOK_SECRET": None,
    "WEBHOOK_ALLOW_PRIVATE": False,
    "ENRICH_ENABLED": True,
    "ENRICH_PARTITIONS": 12,
    "ENRICH_BATCH_SIZE": 200,
    "ENRICH_API_URL": None,
    "ENRICH_API_KEY": None,
    "ENRICH_DNS_SERVERS": None,
    "ENRICH_CONCURRENCY": 16,
    "ENRICH_TIMEOUT_SECONDS": 10,
    "ENRICH_DOMAIN_TTL_SECONDS": 86_400,
    "LOG_LEVEL": "info",
    "LOG_FORMAT": None,
}


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(("variable", "default"), DEFAULTS.items())
def test_the_default_is_the_documented_one(variable: str, default: object) -> None:
    assert getattr(Settings.load(), variable.lower()) == default


def test_every_variable_is_in_the_table_of_defaults() -> None:
    assert {name.upper() for name in Settings.model_fields} == set(DEFAULTS)


@pytest.mark.parametrize("variable", DEFAULTS)
def test_an_empty_variable_is_an_unset_one(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "")
    assert getattr(Settings.load(), variable.lower()) == DEFAULTS[variable]


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("POLL_INTERVAL_SECONDS", "0.5", 0.5),
        ("POLL_CLAIM_LIMIT", "3", 3),
        ("SERVICE_DATA_DIR", "/srv/mailroom", Path("/srv/mailroom")),
        ("DATABASE_URL", "postgres://anna@db.example.com/mail", None),
        ("LOG_LEVEL", "debug", "debug"),
        ("PUBLIC_BASE_URL", "https://mail.example.com/room", None),
        ("LOG_FORMAT", "json", "json"),
    ],
)
def test_a_variable_is_read(
    variable: str, value: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert getattr(Settings.load(), variable.lower()) == (expected or value)


@pytest.mark.parametrize(
    ("value", "servers"),
    [
        ("192.0.2.53", [("192.0.2.53", 53)]),
        ("192.0.2.53:5353, 192.0.2.54", [("192.0.2.53", 5353), ("192.0.2.54", 53)]),
        ("2001:db8::1", [("2001:db8::1", 53)]),
        ("[2001:db8::1]", [("2001:db8::1", 53)]),
        ("[2001:db8::1]:5353", [("2001:db8::1", 5353)]),
    ],
)
def test_dns_servers_are_addresses_with_or_without_a_port(
    value: str, servers: list[tuple[str, int]]
) -> None:
    assert Settings.load(enrich_dns_servers=value).dns_servers == servers


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DATABASE_URL", "mysql://anna:geheim-5@db.example.com/mail"),
        ("DATABASE_URL", "geheim-5"),
        ("SERVICE_SECRET_KEY", "geheim-5"),
        ("SERVICE_SECRET_KEY", f"{Fernet.generate_key().decode()},geheim-5"),
        ("SERVICE_SECRET_KEY", "geheim-5ü"),
        ("HTTP_BIND", "127.0.0.1"),
        ("HTTP_BIND", ":8080"),
        ("HTTP_BIND", "127.0.0.1:http"),
        ("HTTP_BIND", "127.0.0.1:65536"),
        ("PORT", "0"),
        ("PORT", "65536"),
        ("PORT", "80a"),
        ("PUBLIC_BASE_URL", "mail.example.com"),
        ("PUBLIC_BASE_URL", "ftp://mail.example.com"),
        ("PUBLIC_BASE_URL", "https://mail.example.com/?a=b"),
        ("AWAIT_MAX_CONCURRENT_WAITS", "0"),
        ("AWAIT_POLL_INTERVAL_SECONDS", "0"),
        ("RATE_LIMIT_PER_MINUTE", "none"),
        ("POLL_INTERVAL_SECONDS", "0"),
        ("POLL_INTERVAL_SECONDS", "inf"),
        ("POLL_INTERVAL_SECONDS", "nan"),
        ("POLL_INTERVAL_SECONDS", "two minutes"),
        ("POLL_CLAIM_LIMIT", "0"),
        ("POLL_CLAIM_LIMIT", "2.5"),
        ("POLL_CONCURRENCY", "-1"),
        ("POLL_TIMEOUT_SECONDS", "-3"),
        ("WATCHDOG_STUCK_AFTER_SECONDS", "15min"),
        ("IMAP_TIMEOUT_SECONDS", "0"),
        ("IMAP_MAX_CONNECTIONS", "many"),
        ("EXTRACT_MAX_BYTES", "25 MB"),
        ("INLINE_IMAGE_MAX_BYTES", "-1"),
        ("PIPELINE_MAX_ATTEMPTS", "0"),
        ("PIPELINE_CONCURRENCY", "0"),
        ("READ_TIMEOUT_SECONDS", "0"),
        ("READ_MAX_MEMORY_BYTES", "1000000"),
        ("READ_MAX_OUTPUT_BYTES", "0"),
        ("LLM_BASE_URL", "llm.example.com/v1"),
        ("LLM_CONCURRENCY", "0"),
        ("LLM_TIMEOUT_SECONDS", "nan"),
        ("LLM_MAX_INPUT_CHARS", "10"),
        ("WEBHOOK_URL", "hooks.example.com?token=geheim-5"),
        ("WEBHOOK_SECRET", "geheim-5"),
        ("WEBHOOK_SECRET", "whsec_Z2VoZWltLTU="),
        ("WEBHOOK_ALLOW_PRIVATE", "perhaps"),
        ("ENRICH_ENABLED", "perhaps"),
        ("ENRICH_PARTITIONS", "0"),
        ("ENRICH_BATCH_SIZE", "all"),
        ("ENRICH_API_URL", "api.example.com/check"),
        ("ENRICH_DNS_SERVERS", "dns.example.com"),
        ("ENRICH_DNS_SERVERS", "192.0.2.53,"),
        ("ENRICH_DNS_SERVERS", "192.0.2.53:0"),
        ("ENRICH_DNS_SERVERS", "192.0.2.53:65536"),
        ("ENRICH_CONCURRENCY", "0"),
        ("ENRICH_TIMEOUT_SECONDS", "0"),
        ("ENRICH_DOMAIN_TTL_SECONDS", "-1"),
        ("LOG_LEVEL", "loud"),
        ("LOG_FORMAT", "xml"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_variable(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        Settings.load()
    message = str(caught.value)
    assert message.startswith(f"{variable}: ")
    assert len(message.splitlines()) == 1
    assert "geheim-5" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__, "the context is an error that may hold the value"


@pytest.mark.parametrize(
    ("variable", "value", "missing"),
    [
        ("LLM_BASE_URL", "https://llm.example.com/v1", "LLM_MODEL"),
        ("LLM_MODEL", "small", "LLM_BASE_URL"),
        ("LLM_API_KEY", "geheim-5", "LLM_BASE_URL"),
        ("LLM_SCHEMA_FILE", "lines.json", "LLM_BASE_URL"),
        ("WEBHOOK_URL", "https://hooks.example.com/?token=geheim-5", "WEBHOOK_SECRET"),
        ("WEBHOOK_SECRET", "whsec_" + "QUFB" * 8, "WEBHOOK_URL"),
        ("ENRICH_API_KEY", "geheim-5", "ENRICH_API_URL"),
    ],
)
def test_a_variable_that_needs_another_one_says_so(
    variable: str, value: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=f"^{missing}: needed with {variable}$"):
        Settings.load()


def test_overrides_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://db.example.com/mail")
    monkeypatch.setenv("LOG_LEVEL", "debug")
    settings = Settings.load(database_url=None, log_level="error")
    assert (settings.database_url, settings.log_level) == (None, "error")


@pytest.mark.parametrize(
    ("http_bind", "port", "bind"),
    [
        (None, None, "127.0.0.1:8080"),
        (None, "5000", "0.0.0.0:5000"),
        ("127.0.0.1:9000", None, "127.0.0.1:9000"),
        ("127.0.0.1:9000", "5000", "127.0.0.1:9000"),
        ("[::1]:8080", None, "[::1]:8080"),
        ("localhost:0", None, "localhost:0"),
    ],
)
def test_http_bind_wins_over_port(
    http_bind: str | None, port: str | None, bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("HTTP_BIND", http_bind), ("PORT", port)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert Settings.load().bind == bind


def test_the_first_key_encrypts_and_every_key_decrypts() -> None:
    new, old = Fernet.generate_key(), Fernet.generate_key()
    keys = parse_keys(f"{new.decode()}, {old.decode()}\n")
    assert keys.decrypt(Fernet(old).encrypt(b"secret")) == b"secret"
    token = keys.encrypt(b"secret")
    assert Fernet(new).decrypt(token) == b"secret"
    with pytest.raises(InvalidToken):
        Fernet(old).decrypt(token)


@pytest.mark.parametrize("value", ["", ",", "abc", f"{Fernet.generate_key().decode()},"])
def test_what_is_no_key_says_how_to_make_one(value: str) -> None:
    with pytest.raises(ValueError, match="generate_key"):
        parse_keys(value)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings.load().log_level = "debug"


def test_secrets_are_not_in_the_representation(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Fernet.generate_key().decode()
    monkeypatch.setenv("SERVICE_SECRET_KEY", key)
    monkeypatch.setenv("DATABASE_URL", "postgresql://anna:geheim-5@db.example.com/mail")
    monkeypatch.setenv("LLM_BASE_URL", "https://llm.example.com/v1")
    monkeypatch.setenv("LLM_MODEL", "small")
    monkeypatch.setenv("LLM_API_KEY", "geheim-5")
    monkeypatch.setenv("ENRICH_API_URL", "https://api.example.com/check")
    monkeypatch.setenv("ENRICH_API_KEY", "geheim-5")
    monkeypatch.setenv("WEBHOOK_URL", "https://hooks.example.com/?token=geheim-5")
    monkeypatch.setenv("WEBHOOK_SECRET", "whsec_" + "Z2VoZWltLTUg" * 4)
    text = repr(Settings.load()) + str(Settings.load())
    assert key not in text
    assert "Z2VoZWlt" not in text
    assert "geheim-5" not in text
