-- In the database that is migrated. migrations is the fence, steps is what was done.
CREATE TABLE accounts (id bigint PRIMARY KEY, cents bigint NOT NULL);
INSERT INTO accounts SELECT id, 10000 FROM generate_series(1, 600) AS id;
CREATE TABLE migrations (name text PRIMARY KEY, token bigint NOT NULL);
CREATE TABLE steps (n bigserial PRIMARY KEY, migration text NOT NULL, step int NOT NULL, token bigint NOT NULL);
