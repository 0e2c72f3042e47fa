-- The fence for PostgreSQL, for programs in any language: a past tenure can't commit a write.
--
-- Run this script as a role that owns nothing else and that no program uses. It can be run again:
--
--   psql -v ON_ERROR_STOP=1 -f fence.sql
--
-- In each transaction that writes, before its writes:
--
--   SELECT fence.assert('billing/reconcile', 34);       -- the resource, and the token from $FENCING_TOKEN
--
-- Or make tables refuse writes without a token: run SELECT fence.protect('entries', 'billing/reconcile') as the table's owner, and set the
-- token in each transaction. The token ends with the transaction, so a pooler does not pass it on with the connection:
--
--   SELECT fence.use(34);
--   INSERT INTO entries …
--
-- Refusals have an SQLSTATE of their own: FE412 stale, FE428 missing, FE400 malformed, FE425 ahead of a strict mark.
--
-- A transaction that holds a mark and then idles for 30 s is ended, so that a frozen process cannot keep its successor out. Set
-- idle_in_transaction_session_timeout for the role or the session to choose another bound.
--
-- The fence does not stop the tables' owner, superusers, and roles that can set session_replication_role. Programs must not use such a role.
-- A trigger of a partitioned table does not see statements that name a partition: protect the partitions too.

CREATE SCHEMA IF NOT EXISTS fence;
GRANT USAGE ON SCHEMA fence TO PUBLIC;

CREATE TABLE IF NOT EXISTS fence.marks (
  resource text COLLATE "C" PRIMARY KEY CHECK (length(resource) BETWEEN 1 AND 200),
  token bigint NOT NULL CHECK (token >= 0),
  strict boolean NOT NULL DEFAULT false
);
CREATE TABLE IF NOT EXISTS fence.steps (
  run text COLLATE "C", step text COLLATE "C", at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (run, step)
);
REVOKE ALL ON fence.marks, fence.steps FROM PUBLIC;

-- assert holds the mark until the transaction ends. It raises the mark if the token is higher, and fails if the token is lower.
CREATE OR REPLACE FUNCTION fence.assert(resource text, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  held fence.marks;
BEGIN
  IF resource IS NULL OR resource !~ '^[A-Za-z0-9._/:@-]{1,200}$' THEN
    RAISE EXCEPTION 'fencing resource % is malformed', quote_nullable(resource) USING ERRCODE = 'FE400';
  ELSIF token IS NULL THEN
    RAISE EXCEPTION 'fencing token is missing' USING ERRCODE = 'FE428', HINT = 'pass the number in $FENCING_TOKEN';
  ELSIF token < 1 THEN
    RAISE EXCEPTION 'fencing token % is malformed', token USING ERRCODE = 'FE400', HINT = 'pass the number in $FENCING_TOKEN';
  END IF;
  LOOP
    -- The mark is raised before it is held. Otherwise two transactions with the same new token could both hold it and then wait for each other.
    UPDATE fence.marks m SET token = assert.token WHERE m.resource = assert.resource AND m.token < assert.token AND NOT m.strict;
    SELECT * INTO held FROM fence.marks m WHERE m.resource = assert.resource FOR SHARE;
    EXIT WHEN FOUND;
    INSERT INTO fence.marks (resource, token) VALUES (assert.resource, 0) ON CONFLICT DO NOTHING;
  END LOOP;
  -- A process that is frozen in this transaction must not keep all later tenures out: the server ends its session, unless the session has a
  -- bound of its own. The setting ends with the transaction.
  PERFORM set_config('idle_in_transaction_session_timeout', '30s', true) WHERE current_setting('idle_in_transaction_session_timeout') = '0';
  IF held.token > token THEN
    RAISE EXCEPTION 'fencing token % of % is stale: the highest is %', token, resource, held.token USING ERRCODE = 'FE412',
      HINT = 'a later tenure has begun: end this process';
  ELSIF held.token < token THEN
    RAISE EXCEPTION 'fencing token % of % is ahead of the mark %', token, resource, held.token USING ERRCODE = 'FE425',
      HINT = 'the mark is strict: call fence.advance at the beginning of the tenure';
  END IF;
END $$;

-- advance raises the mark without a write. Once it is committed, no open transaction with a lower token can commit.
CREATE OR REPLACE FUNCTION fence.advance(resource text, token bigint, strict boolean DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF resource IS NULL OR resource !~ '^[A-Za-z0-9._/:@-]{1,200}$' THEN
    RAISE EXCEPTION 'fencing resource % is malformed', quote_nullable(resource) USING ERRCODE = 'FE400';
  ELSIF token IS NULL OR token < 1 THEN
    RAISE EXCEPTION 'fencing token % is missing or below 1', quote_nullable(token::text) USING ERRCODE = 'FE400';
  END IF;
  INSERT INTO fence.marks AS m (resource, token, strict) VALUES (resource, token, coalesce(strict, false))
    ON CONFLICT ON CONSTRAINT marks_pkey DO UPDATE SET token = greatest(m.token, excluded.token), strict = coalesce(advance.strict, m.strict);
  PERFORM fence.assert(resource, token);
END $$;
REVOKE EXECUTE ON FUNCTION fence.advance(text, bigint, boolean) FROM PUBLIC; -- in strict mode no other role may move the mark

-- strict decides what raises the mark from now on: only advance (true), or every write (false). For a job that calls advance, set it before the
-- first tenure, so that no write passes before the first advance.
CREATE OR REPLACE FUNCTION fence.strict(resource text, strict boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF resource IS NULL OR resource !~ '^[A-Za-z0-9._/:@-]{1,200}$' THEN
    RAISE EXCEPTION 'fencing resource % is malformed', quote_nullable(resource) USING ERRCODE = 'FE400';
  END IF;
  INSERT INTO fence.marks (resource, token, strict) VALUES (resource, 0, strict)
    ON CONFLICT ON CONSTRAINT marks_pkey DO UPDATE SET strict = excluded.strict;
END $$;
REVOKE EXECUTE ON FUNCTION fence.strict(text, boolean) FROM PUBLIC;

-- use sets the token for the rest of the transaction, for protected tables.
CREATE OR REPLACE FUNCTION fence.use(token bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  SELECT set_config('fence.token', coalesce(token::text, ''), true);
$$;

-- guard is the trigger of protected tables. Its argument is the resource.
CREATE OR REPLACE FUNCTION fence.guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  -- NULL if it was never set, '' if an earlier transaction has set it: in both cases there is no token.
  token text := nullif(current_setting('fence.token', true), '');
BEGIN
  IF token !~ '^[1-9][0-9]{0,18}$' OR token::numeric > 9223372036854775807 THEN
    RAISE EXCEPTION 'fencing token % is malformed', quote_literal(token) USING ERRCODE = 'FE400';
  END IF;
  PERFORM fence.assert(TG_ARGV[0], token::bigint);
  RETURN NULL;
END $$;

-- protect makes a table refuse writes without the resource's token. The table's owner must call it.
CREATE OR REPLACE FUNCTION fence.protect(of regclass, resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF resource IS NULL OR resource !~ '^[A-Za-z0-9._/:@-]{1,200}$' THEN
    RAISE EXCEPTION 'fencing resource % is malformed', quote_nullable(resource) USING ERRCODE = 'FE400';
  END IF;
  EXECUTE format('CREATE OR REPLACE TRIGGER "00_fence" BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
    'FOR EACH STATEMENT EXECUTE FUNCTION fence.guard(%L)', of, resource);
END $$;

-- once records a step of a run, and returns whether it is the first time. All attempts of a run have the same $SINGLETONJOB_RUN_ID.
CREATE OR REPLACE FUNCTION fence.once(run text, step text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF run IS NULL OR step IS NULL OR run = '' OR step = '' THEN
    RAISE EXCEPTION 'run % and step % must both be non-empty', quote_nullable(run), quote_nullable(step) USING ERRCODE = 'FE400';
  END IF;
  INSERT INTO fence.steps (run, step) VALUES (run, step) ON CONFLICT ON CONSTRAINT steps_pkey DO NOTHING;
  RETURN FOUND;
END $$;
