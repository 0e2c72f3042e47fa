#!/usr/bin/env python3
"""Book one row in the ledger for each tick of a schedule.

An attempt looks for the row of its tick, does the work, and books the row. That is enough if attempts follow one another. The fence is for an
attempt that was frozen: with a lower token than the ledger has seen it books nothing.
"""

import os
import signal
import sys
import time

import psycopg2

TICK, TOKEN = os.environ["SINGLETONJOB_TICK"], int(os.environ["FENCING_TOKEN"])
FENCE = "UPDATE booking SET token = %s WHERE token <= %s"


def fence(cursor):
    """Check the token. Call this first in each transaction: it also locks the row until the commit."""
    cursor.execute(FENCE, (TOKEN, TOKEN))
    if cursor.rowcount == 0:
        sys.exit(f"token {TOKEN} is of a past tenure")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    connection = psycopg2.connect(os.environ["DATABASE_URL"], options="-c idle_in_transaction_session_timeout=10s")
    with connection, connection.cursor() as cursor:  # commits, or rolls back after an error
        fence(cursor)  # from now on no earlier attempt books anything
        cursor.execute("SELECT FROM ledger WHERE tick = %s", (TICK,))
        if cursor.rowcount > 0:
            print(f"{TICK} is booked already")
            return
    time.sleep(float(os.environ.get("WORK", "2")))  # the night's work, since SINGLETONJOB_PREVIOUS_TICK
    with connection, connection.cursor() as cursor:
        fence(cursor)
        cursor.execute("INSERT INTO ledger (tick, token) VALUES (%s, %s)", (TICK, TOKEN))


if __name__ == "__main__":
    main()
