"""What the service counts and measures, by its Prometheus names (all begin with `mailroom_`)."""

from prometheus_client import Counter, Gauge, Histogram

MESSAGES = Counter(
    "mailroom_messages",
    "Messages by what became of them",
    ["outcome"],  # stored, duplicate, quarantined, too_old, gone
)
POLLS = Counter("mailroom_polls", "Polls of one mailbox by how they ended", ["outcome"])
POLL_SECONDS = Histogram("mailroom_poll_seconds", "Duration of the poll of one mailbox")
CYCLE_FAILURES = Counter("mailroom_cycle_failures", "Cycles that ended in an exception", ["loop"])
IMAP_CONNECTIONS = Gauge("mailroom_imap_connections", "IMAP connections open now")
ATTACHMENTS_RELEASED = Counter(
    "mailroom_attachments_released", "Stuck attachments that the watchdog gave back or failed"
)
ATTACHMENTS = Counter(
    "mailroom_attachments",
    "Claimed attachments by what became of them",
    ["outcome"],  # done, failed, pending (to be tried again), lost (the claim, to the watchdog)
)
READ_SECONDS = Histogram("mailroom_read_seconds", "Duration of the reading of one file")
TRANSACTION_SECONDS = Histogram(
    "mailroom_transaction_seconds",
    "Duration of database transactions by the function that began them (module:name)",
    ["transaction"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)
HTTP_REQUESTS = Counter("mailroom_http_requests", "HTTP requests", ["route", "status"])
WAITS_IN_FLIGHT = Gauge("mailroom_waits_in_flight", "Clients that are waiting for a message now")
WAITS = Counter(
    "mailroom_waits",
    "Waits by how they ended",
    ["outcome"],  # found, timeout, disconnected, TooManyWaits, ServiceStopping, CredentialsRefused
)
WAIT_SECONDS = Histogram(
    "mailroom_wait_seconds",
    "Duration of waits",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120),
)
ROUNDS = Counter(
    "mailroom_rounds",
    "Rounds for waiting clients by how they ended",
    ["outcome"],  # ok, broken_off (nobody waited any more), crash, or the name of an error
)
ROUND_SECONDS = Histogram("mailroom_round_seconds", "Duration of rounds for waiting clients")
LLM_CALLS = Counter(
    "mailroom_llm_calls",
    "Calls to the LLM endpoint by how they ended",
    # ok, invalid, refused, throttled, server_error, garbled, timeout, unreachable, misconfigured,
    # broken_off (cancelled, or the time for the document was over)
    ["outcome"],
)
LLM_TOKENS = Counter("mailroom_llm_tokens", "Tokens as the LLM endpoint counts them", ["kind"])
LLM_SECONDS = Histogram(
    "mailroom_llm_seconds",
    "Duration of calls to the LLM endpoint",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 60, 120, 300),
)
WEBHOOKS = Counter(
    "mailroom_webhooks",
    "Attempts to deliver an event to the webhook by how they ended",
    ["outcome"],  # delivered, failed (tried again later), given_up (the last one)
)
ENRICHED_ROWS = Counter(
    "mailroom_enriched_rows",
    "Rows whose address was checked, by the verdict that was written",
    ["verdict"],  # valid, invalid, unknown (to be tried again)
)
DOMAIN_CHECKS = Counter(
    "mailroom_domain_checks",
    "Checks of e-mail domains by the reason of their verdict",
    ["outcome"],  # mx, no_such_domain, dns_timeout, api, api_throttled, check_crashed ...
)
DOMAIN_CHECK_SECONDS = Histogram(
    "mailroom_domain_check_seconds",
    "Duration of checks of e-mail domains that asked DNS or the API",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
