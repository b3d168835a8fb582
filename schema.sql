-- mailroom: the full current truth of the schema. `python -m service migrate` applies it to an
-- empty database; what changes later is in service/db/migrations/ and is folded in here as well.
--
-- Only the database's clock (now()) decides anything here.

-- One row: the version of the schema. A service refuses to run on one newer than it knows.
CREATE TABLE schema_version (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version     integer NOT NULL CHECK (version >= 1),
    applied_at  timestamptz NOT NULL DEFAULT now()
);

-- A configured account. A replica claims due rows with FOR UPDATE SKIP LOCKED and stamps
-- last_polled_at; that stamp is the fencing token which every later write must match.
CREATE TABLE email_mailbox_config (
    id                    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    address               text NOT NULL CHECK (address ~ '^[^\r\n]+$'),
    provider              text NOT NULL CHECK (provider IN ('imap', 'gmail', 'graph')),
    connection            jsonb NOT NULL CHECK (jsonb_typeof(connection) = 'object'),
    secret                bytea,                      -- Fernet token; null: nothing stored
    poll_interval         interval NOT NULL DEFAULT '120 seconds'
                          CHECK (poll_interval >= interval '1 second'),
    last_polled_at        timestamptz,                -- the claim's stamp
    not_before            timestamptz,                -- back-off and throttling
    ingest_since          timestamptz DEFAULT now(),  -- null: everything in the folder
    cursor                jsonb CHECK (cursor IS NULL OR jsonb_typeof(cursor) = 'object'),
    enabled               boolean NOT NULL DEFAULT true,
    state                 text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'needs_reauth')),
    consecutive_failures  integer NOT NULL DEFAULT 0 CHECK (consecutive_failures >= 0),
    last_error            text,
    last_success_at       timestamptz,
    created_at            timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX email_mailbox_config_address ON email_mailbox_config (lower(address));
CREATE INDEX email_mailbox_config_due ON email_mailbox_config (last_polled_at NULLS FIRST)
    WHERE enabled;

-- What a message becomes. UNIQUE (source, source_ref) is the authority on "exactly once".
CREATE TABLE request (
    id                   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source               text NOT NULL DEFAULT 'email' CHECK (source <> ''),
    source_ref           text NOT NULL CHECK (octet_length(source_ref) BETWEEN 1 AND 2100),
    mailbox_id           bigint REFERENCES email_mailbox_config ON DELETE SET NULL,
    message_id           text,                        -- as sent, whatever its length; null: none
    message_id_reused    boolean NOT NULL DEFAULT false,
    content_fingerprint  text NOT NULL CHECK (content_fingerprint ~ '^[0-9a-f]{64}$'),
    subject              text,
    sender               text,
    recipients           jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(recipients) = 'array'),
    sent_at              timestamptz,                 -- null: the Date header is unusable
    raw_date             text,
    received_at          timestamptz NOT NULL,        -- INTERNALDATE
    body_text            text NOT NULL,
    created_at           timestamptz NOT NULL DEFAULT now(),
    UNIQUE (source, source_ref)
);
CREATE INDEX request_mailbox ON request (mailbox_id, id);
CREATE INDEX request_received ON request (received_at);

-- One unit of pipeline work: a file of the message, or its text when there is no file to extract.
-- Every part that is not the message's text has a row, filtered ones too, with the reason.
CREATE TABLE attachment (
    id                     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_id             bigint NOT NULL REFERENCES request ON DELETE CASCADE,
    kind                   text NOT NULL CHECK (kind IN ('file', 'body')),
    part_id                text,                      -- IMAP section number; null for a body
    filename               text,
    content_type           text NOT NULL,
    size_bytes             bigint NOT NULL CHECK (size_bytes >= 0),
    sha256                 text CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    verdict                text NOT NULL CHECK (verdict IN ('extract', 'inline_image', 'unsupported',
                                                            'too_large', 'encrypted', 'damaged')),
    verdict_reason         text,
    content                bytea,
    status                 text NOT NULL CHECK (status IN ('pending', 'processing', 'done',
                                                           'failed', 'skipped')),
    attempts               integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    not_before             timestamptz,               -- back-off after a failed attempt
    processing_started_at  timestamptz,               -- the claim's stamp
    result                 jsonb CHECK (result IS NULL OR jsonb_typeof(result) = 'object'),
    error                  text,
    created_at             timestamptz NOT NULL DEFAULT now(),
    finished_at            timestamptz,
    CHECK ((kind = 'body') = (part_id IS NULL)),
    CHECK ((verdict = 'extract') = (status <> 'skipped')),
    CHECK (verdict = 'extract' OR verdict_reason IS NOT NULL),
    CHECK (verdict <> 'extract' OR kind = 'body' OR (content IS NOT NULL AND sha256 IS NOT NULL)),
    CHECK ((status = 'processing') = (processing_started_at IS NOT NULL)),
    CHECK (status <> 'failed' OR error IS NOT NULL),
    CHECK (status <> 'done' OR result IS NOT NULL),
    CHECK ((status IN ('done', 'failed')) = (finished_at IS NOT NULL))
);
-- PDF and XLSX are compressed already: do not spend time on trying again.
ALTER TABLE attachment ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE INDEX attachment_request ON attachment (request_id);
-- For the status of a request, and for the requests of a status.
CREATE INDEX attachment_open ON attachment (request_id) WHERE status IN ('pending', 'processing');
CREATE INDEX attachment_failed ON attachment (request_id) WHERE status = 'failed';
CREATE INDEX attachment_pending ON attachment (id) WHERE status = 'pending';
CREATE INDEX attachment_processing ON attachment (processing_started_at) WHERE status = 'processing';

-- A message that could not become a request. The cursor passes it only together with this row.
CREATE TABLE quarantine (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    mailbox_id   bigint REFERENCES email_mailbox_config ON DELETE SET NULL,
    server_ref   jsonb NOT NULL CHECK (jsonb_typeof(server_ref) = 'object'),
    stage        text NOT NULL CHECK (stage IN ('fetch', 'parse', 'store')),
    error        text NOT NULL,
    raw          bytea,                               -- the whole message, when it could be had
    attempts     integer NOT NULL DEFAULT 1 CHECK (attempts >= 1),
    created_at   timestamptz NOT NULL DEFAULT now(),
    resolved_at  timestamptz
);
CREATE UNIQUE INDEX quarantine_message ON quarantine (mailbox_id, server_ref);
CREATE INDEX quarantine_open ON quarantine (mailbox_id, id) WHERE resolved_at IS NULL;

-- The outbox of the webhook: one event each time that every attachment of a request has come to
-- its end, written in the transaction that ended the last one. Delivered at least once.
CREATE TABLE webhook_outbox (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id         text NOT NULL UNIQUE             -- the receiver's idempotency key
                     DEFAULT 'msg_' || replace(gen_random_uuid()::text, '-', ''),
    request_id       bigint NOT NULL REFERENCES request ON DELETE CASCADE,
    payload          text NOT NULL,                   -- the JSON as it is signed and sent
    attempts         integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_attempt_at  timestamptz NOT NULL DEFAULT now(),
    claimed_at       timestamptz,                     -- the claim's stamp
    delivered_at     timestamptz,
    given_up_at      timestamptz,
    last_error       text,
    created_at       timestamptz NOT NULL DEFAULT now(),
    CHECK (delivered_at IS NULL OR given_up_at IS NULL),
    CHECK (given_up_at IS NULL OR last_error IS NOT NULL)
);
CREATE INDEX webhook_outbox_due ON webhook_outbox (next_attempt_at)
    WHERE delivered_at IS NULL AND given_up_at IS NULL;
CREATE INDEX webhook_outbox_request ON webhook_outbox (request_id);

-- What the enricher checks. email_verified null: not known (yet).
CREATE TABLE job_advertisement (
    id                      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email                   text,
    email_verified          boolean,                  -- null: not known; set it to null to ask anew
    email_check             jsonb CHECK (email_check IS NULL OR jsonb_typeof(email_check) = 'object'),
    email_check_claimed_at  timestamptz,              -- the claim's stamp
    email_check_not_before  timestamptz NOT NULL DEFAULT '-infinity'  -- back-off of what is unknown
);
-- By domain, so that the rows of a batch share few of them.
CREATE INDEX job_advertisement_due ON job_advertisement
    (email_check_not_before, (left(lower(split_part(email, '@', -1)), 255)), id)
    WHERE email_verified IS NULL;

-- The verdict on an address says nothing of another one, unless that comes with its own.
CREATE FUNCTION forget_email_check() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    NEW.email_verified = NULL;
    NEW.email_check = NULL;
    NEW.email_check_claimed_at = NULL;
    NEW.email_check_not_before = '-infinity';
    RETURN NEW;
END $$;
CREATE TRIGGER forget_email_check BEFORE UPDATE ON job_advertisement FOR EACH ROW
    WHEN (OLD.email IS DISTINCT FROM NEW.email
          AND OLD.email_verified IS NOT DISTINCT FROM NEW.email_verified)
    EXECUTE FUNCTION forget_email_check();

-- What is known of an e-mail domain, for all replicas until it expires. A replica that asks about a
-- domain stamps claimed_at first; the others wait for its answer.
CREATE TABLE email_domain (
    domain      text PRIMARY KEY CHECK (domain <> ''),  -- in ASCII, lower case
    verdict     text CHECK (verdict IN ('valid', 'invalid', 'unknown')),
    reason      text,                                 -- a code, such as null_mx
    detail      text,                                 -- the same in a sentence
    evidence    jsonb CHECK (jsonb_typeof(evidence) = 'object'),
    failures    integer NOT NULL DEFAULT 0 CHECK (failures >= 0),  -- unknown so many times in a row
    checked_at  timestamptz,
    expires_at  timestamptz,                          -- from then on it is asked again
    claimed_at  timestamptz,                          -- the claim's stamp
    CHECK (num_nulls(verdict, reason, detail, evidence, checked_at, expires_at) IN (0, 6))
);

-- How far a CSV file has been imported into job_advertisement: written in the transaction of the
-- rows, so that a broken-off import goes on where it was.
CREATE TABLE enrich_import (
    file_sha256   bytea PRIMARY KEY CHECK (octet_length(file_sha256) = 32),
    lines_done    bigint NOT NULL DEFAULT 0 CHECK (lines_done >= 0),
    rows_stored   bigint NOT NULL DEFAULT 0 CHECK (rows_stored >= 0),
    started_at    timestamptz NOT NULL DEFAULT now(),
    finished_at   timestamptz
);

-- A bearer token of the HTTP API: only its SHA-256 is stored.
CREATE TABLE api_token (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text NOT NULL CHECK (name <> ''),
    token_sha256  bytea NOT NULL UNIQUE CHECK (octet_length(token_sha256) = 32),
    scopes        text[] NOT NULL CHECK (cardinality(scopes) > 0),
    mailboxes     text[],                             -- null: all
    created_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz,
    revoked_at    timestamptz,
    last_used_at  timestamptz
);

-- The shared rate limiter: the theoretical arrival time per key (generic cell rate algorithm).
-- Unlogged: a request does not wait for the disk; after a crash of PostgreSQL all limits are new.
CREATE UNLOGGED TABLE rate_limit (
    key         text PRIMARY KEY,
    tat         timestamptz NOT NULL
);
