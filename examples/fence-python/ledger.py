#!/usr/bin/env python3
"""Write entries to a ledger in PostgreSQL. The fence refuses entries of a past tenure.

Run it as the command of a SingletonJob's container. The agent sets FENCING_TOKEN, SINGLETONJOB_NAMESPACE and SINGLETONJOB_NAME;
DATABASE_URL is the address of the ledger. ENTRIES limits the number of entries; without it, the program writes indefinitely.

The database needs fence.sql (fence/fencesql) and: CREATE TABLE entries (n bigserial PRIMARY KEY, token bigint, payload text)
"""

import os
import sys
import time

import psycopg2

# The SQLSTATEs of fence.sql.
STALE, MISSING, MALFORMED, AHEAD = "FE412", "FE428", "FE400", "FE425"
PAST_TENURE = 3  # the exit status when the tenure is over


def environment(name):
    value = os.environ.get(name, "")
    if not value:
        sys.exit(f"{name} is not set: run this as the command of a SingletonJob")
    return value


def write(connection, resource, token, payload):
    """Write in one transaction. The check locks the mark until the commit, so no later tenure can write in between."""
    with connection, connection.cursor() as cursor:  # commits, or rolls back after an error
        cursor.execute("SELECT fence.assert(%s, %s)", (resource, token))
        cursor.execute("INSERT INTO entries (token, payload) VALUES (%s, %s)", (token, payload))


def main():
    token = environment("FENCING_TOKEN")
    resource = environment("SINGLETONJOB_NAMESPACE") + "/" + environment("SINGLETONJOB_NAME")
    connection = psycopg2.connect(environment("DATABASE_URL"))
    entries = int(os.environ.get("ENTRIES", "0"))
    n = 0
    while n < entries or not entries:
        try:
            write(connection, resource, token, f"{token}:{n}")
        except psycopg2.Error as error:
            if error.pgcode not in (STALE, MISSING, MALFORMED, AHEAD):
                raise
            print(f"refused: {error.diag.message_primary}; {error.diag.message_hint}", file=sys.stderr, flush=True)
            sys.exit(PAST_TENURE if error.pgcode == STALE else 1)
        print(f"stored {token}:{n}", flush=True)
        n += 1
        if not entries:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
