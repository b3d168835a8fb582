-- The pipeline: back-off of attachments, and the webhook's outbox.
ALTER TABLE attachment
    ADD COLUMN not_before timestamptz,
    ADD CONSTRAINT attachment_result_check
        CHECK (result IS NULL OR jsonb_typeof(result) = 'object'),
    ADD CHECK (status <> 'done' OR result IS NOT NULL);

CREATE TABLE webhook_outbox (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id         text NOT NULL UNIQUE
                     DEFAULT 'msg_' || replace(gen_random_uuid()::text, '-', ''),
    request_id       bigint NOT NULL REFERENCES request ON DELETE CASCADE,
    payload          text NOT NULL,
    attempts         integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_attempt_at  timestamptz NOT NULL DEFAULT now(),
    claimed_at       timestamptz,
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

-- The requests API: pages by id, whatever the filter.
DROP INDEX request_mailbox;
CREATE INDEX request_mailbox ON request (mailbox_id, id);
CREATE INDEX request_received ON request (received_at);
CREATE INDEX attachment_open ON attachment (request_id) WHERE status IN ('pending', 'processing');
CREATE INDEX attachment_failed ON attachment (request_id) WHERE status = 'failed';
