#!/usr/bin/env python3
"""A migration of many steps in PostgreSQL. Each step is a transaction, and adds interest to some accounts: a step that is done twice is money.

The steps that are done are in the database, in the transaction that did them. The row of the migration is the fence: a process with a lower
token than the row has seen changes no row, and ends.
"""

import os
import signal
import sys
import time

import psycopg2

NAME, TOKEN = os.environ["SINGLETONJOB_NAME"], int(os.environ["FENCING_TOKEN"])
STEPS = int(os.environ.get("STEPS", "60"))
ACCOUNTS = 10  # of each step
FENCE = "UPDATE migrations SET token = %s WHERE name = %s AND token <= %s"
STEP = "UPDATE accounts SET cents = cents + cents / 100 WHERE id > %s AND id <= %s"


def fence(cursor):
    """Check the token. Call this first in each transaction: it also locks the row until the commit."""
    cursor.execute(FENCE, (TOKEN, NAME, TOKEN))
    if cursor.rowcount == 0:
        sys.exit(f"token {TOKEN} is of a past tenure")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    connection = psycopg2.connect(os.environ["DATABASE_URL"], options="-c idle_in_transaction_session_timeout=10s")
    with connection, connection.cursor() as cursor:  # commits, or rolls back after an error
        cursor.execute("INSERT INTO migrations VALUES (%s, 0) ON CONFLICT DO NOTHING", (NAME,))
        fence(cursor)  # from now on no earlier attempt does a step
        cursor.execute("SELECT coalesce(max(step), 0) FROM steps WHERE migration = %s", (NAME,))
        done = cursor.fetchone()[0]
    for step in range(done + 1, STEPS + 1):
        with connection, connection.cursor() as cursor:
            fence(cursor)
            cursor.execute(STEP, ((step - 1) * ACCOUNTS, step * ACCOUNTS))
            cursor.execute("INSERT INTO steps (migration, step, token) VALUES (%s, %s, %s)", (NAME, step, TOKEN))
        print(f"step {step} of {STEPS}", flush=True)
        time.sleep(1)  # so that a reader can follow, and a test has time to disturb it


if __name__ == "__main__":
    main()
