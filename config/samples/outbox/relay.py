#!/usr/bin/env python3
"""Carries events from the outbox of one PostgreSQL to a table of another: each once, in the order of their commits.

How far it is stands in the target, and moves in the transaction that stores the events. That transaction begins with the fence: the
highest token that was seen is in the same row, and a relay whose token is lower gets no row, and ends.
"""

import os
import signal
import sys
import time

import psycopg2
import psycopg2.extras

TOKEN = int(os.environ["FENCING_TOKEN"])
# Where a relay vanishes without a word, the row that it has locked is free again after this.
OPTIONS = "-c idle_in_transaction_session_timeout=10s"

# Numbers of rows are drawn before they are committed, so a lower one may come later. This leaves what a transaction that is still
# under way might come before. By o.xid, as the text that is read 999 would come after 1000.
READ = """
    SELECT xid::text, id, payload FROM outbox o
    WHERE (xid, id) > (%s::xid8, %s) AND xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY o.xid, o.id LIMIT 100"""
FENCE = "UPDATE relay SET token = %s, xid = %s::xid8, id = %s WHERE name = 'outbox' AND token <= %s"
STORE = "INSERT INTO events (id, payload, token) VALUES %s"


def advance(target, position):
    """In each transaction that writes, first."""
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
        advance(write, position)  # from here on nobody before this one moves it
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
