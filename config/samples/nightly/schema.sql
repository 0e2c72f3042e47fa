-- booking is the fence, the ledger has a row for each tick.
CREATE TABLE booking (token bigint NOT NULL);
INSERT INTO booking VALUES (0);
CREATE TABLE ledger (n bigserial PRIMARY KEY, tick text NOT NULL, token bigint NOT NULL);
