#!/usr/bin/env python3
"""A collector that stores the readings of a meter in SQLite, each once.

The database is a file on a volume that one node at a time can use. The row `tenure` in it is the fence: a process with a lower token than
the row has seen changes no row, and ends.
"""

import json
import os
import signal
import sqlite3
import sys
import time
import urllib.request

TOKEN = int(os.environ["FENCING_TOKEN"])
SCHEMA = """
    CREATE TABLE IF NOT EXISTS readings (n INTEGER PRIMARY KEY, id INTEGER NOT NULL, value REAL NOT NULL, token INTEGER NOT NULL, at REAL NOT NULL);
    CREATE TABLE IF NOT EXISTS tenure (only INTEGER PRIMARY KEY CHECK (only = 1), token INTEGER NOT NULL);
    INSERT OR IGNORE INTO tenure VALUES (1, 0);"""


def fence(database):
    """Check the token. Call this first in each transaction: it also locks the database until the commit."""
    if database.execute("UPDATE tenure SET token = ? WHERE token <= ?", (TOKEN, TOKEN)).rowcount == 0:
        sys.exit(f"token {TOKEN} is of a past tenure")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    database = sqlite3.connect(os.environ.get("DATABASE", "/data/readings.db"), timeout=30)
    database.executescript(SCHEMA)
    with database:  # commits, or rolls back after an error
        fence(database)  # from now on no earlier collector can store anything
        last = database.execute("SELECT coalesce(max(id), 0) FROM readings").fetchone()[0]
    while True:
        with urllib.request.urlopen(f"{os.environ['METER_URL']}/readings?after={last}", timeout=10) as answer:
            readings = json.load(answer)
        if readings:
            with database:
                fence(database)
                rows = [(r["id"], r["value"], TOKEN, time.time()) for r in readings]
                database.executemany("INSERT INTO readings (id, value, token, at) VALUES (?, ?, ?, ?)", rows)
            last = readings[-1]["id"]
        time.sleep(0.1)


if __name__ == "__main__":
    main()
