-- In the database of your application, which adds a row in the transaction that it tells of.
CREATE TABLE outbox (
    id      bigserial PRIMARY KEY,
    xid     xid8 NOT NULL DEFAULT pg_current_xact_id(),
    payload text NOT NULL
);
CREATE INDEX ON outbox (xid, id);
