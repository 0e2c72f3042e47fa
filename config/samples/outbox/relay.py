#!/usr/bin/env python3
"""A relay from an outbox in one PostgreSQL to a table in another. It stores each event once, in the order of the commits.

The target stores the relay's position. The transaction that stores events also moves the position. It begins with the fence: the same row
has the highest token that was seen. A relay with a lower token updates no row, and ends.
"""

import os
import signal
import sys
import time

import psycopg2
import psycopg2.extras

TOKEN = int(os.environ["FENCING_TOKEN"])
# If a relay disappears, PostgreSQL unlocks its row after this time.
OPTIONS = "-c idle_in_transaction_session_timeout=10s"

# A row gets its number before its transaction commits, so a lower number can appear later. This query leaves rows out while an earlier
# transaction can still commit. It orders by o.xid, because as text 999 would come after 1000.
READ = """
    SELECT xid::text, id, payload FROM outbox o
    WHERE (xid, id) > (%s::xid8, %s) AND xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY o.xid, o.id LIMIT 100"""
FENCE = "UPDATE relay SET token = %s, xid = %s::xid8, id = %s WHERE name = 'outbox' AND token <= %s"
STORE = "INSERT INTO events (id, payload, token) VALUES %s"


def advance(target, position):
    """Check the token and move the position. Call this first in each transaction that writes."""
    target.execute(FENCE, (TOKEN, *position, TOKEN))
    if target.rowcount == 0:
        sys.exit(f"token {TOKEN} is of a past tenure")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    source = psycopg2.connect(os.environ["SOURCE_URL"])
    source.autocommit = True
    target = psycopg2.connect(os.environ["TARGET_URL"], options=OPTIONS)
    outbox = source.cursor()
    with target, target.cursor() as write:
        write.execute("SELECT xid::text, id FROM relay WHERE name = 'outbox' FOR UPDATE")
        position = write.fetchone()
        advance(write, position)  # from now on no earlier relay can move it
    while True:
        outbox.execute(READ, position)
        events = outbox.fetchall()
        if not events:
            time.sleep(0.1)
            continue
        position = events[-1][:2]
        with target, target.cursor() as write:  # commits, or rolls back after an error
            advance(write, position)
            psycopg2.extras.execute_values(write, STORE, [(id, payload, TOKEN) for _, id, payload in events])


if __name__ == "__main__":
    main()
