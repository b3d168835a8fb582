-- The enricher: back-off of rows, the shared verdicts on domains, and resumable imports.
ALTER TABLE job_advertisement
    ADD COLUMN email_check_not_before timestamptz NOT NULL DEFAULT '-infinity';
DROP INDEX job_advertisement_unverified;
CREATE INDEX job_advertisement_due ON job_advertisement
    (email_check_not_before, (left(lower(split_part(email, '@', -1)), 255)), id)
    WHERE email_verified IS NULL;

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

CREATE TABLE email_domain (
    domain      text PRIMARY KEY CHECK (domain <> ''),
    verdict     text CHECK (verdict IN ('valid', 'invalid', 'unknown')),
    reason      text,
    detail      text,
    evidence    jsonb CHECK (jsonb_typeof(evidence) = 'object'),
    failures    integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    checked_at  timestamptz,
    expires_at  timestamptz,
    claimed_at  timestamptz,
    CHECK (num_nulls(verdict, reason, detail, evidence, checked_at, expires_at) IN (0, 6))
);

CREATE TABLE enrich_import (
    file_sha256   bytea PRIMARY KEY CHECK (octet_length(file_sha256) = 32),
    lines_done    bigint NOT NULL DEFAULT 0 CHECK (lines_done >= 0),
    rows_stored   bigint NOT NULL DEFAULT 0 CHECK (rows_stored >= 0),
    started_at    timestamptz NOT NULL DEFAULT now(),
    finished_at   timestamptz
);
