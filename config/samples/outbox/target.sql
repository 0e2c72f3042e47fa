-- In the database that is to have the events. relay is both the position and the fence.
CREATE TABLE events (
    n       bigserial PRIMARY KEY,
    id      bigint NOT NULL,
    payload text NOT NULL,
    token   bigint NOT NULL
);
CREATE TABLE relay (
    name    text PRIMARY KEY,
    token   bigint NOT NULL,
    xid     xid8 NOT NULL,
    id      bigint NOT NULL
);
INSERT INTO relay VALUES ('outbox', 0, '0', 0);
