#!/usr/bin/env python3
"""APScheduler bills each second of usage at an API, once.

APScheduler forgets what it has run, or notes it in a store of its own, which two schedulers read at the same time. Here the API is the one
place that knows: it says what it has billed last, and refuses requests of a past tenure. So a scheduler that starts begins where the last one
ended, and no request of the last one arrives after that.
"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
import uuid

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.blocking import BlockingScheduler

INTERVAL = 1  # seconds, of which the ticks are multiples
HEADERS = {"Fencing-Token": os.environ["FENCING_TOKEN"], "User-Agent": f"scheduler/{uuid.uuid4()}"}


def call(body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["API_URL"] + "/bills", data, HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 412:
            print("this token is of a past tenure", file=sys.stderr, flush=True)
            os._exit(3)  # APScheduler would log an exception, and go on
        raise


def bill():
    """Bill the ticks since the last one. A tick whose request fails is billed by the next run."""
    global last
    now = int(time.time()) // INTERVAL * INTERVAL
    for tick in range(last + INTERVAL, now + 1, INTERVAL):
        call({"tick": tick})
        last = tick


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    last = call()["last"] or int(time.time()) // INTERVAL * INTERVAL - INTERVAL  # from now on the API refuses earlier tenures
    scheduler = BlockingScheduler(timezone="UTC", executors={"default": DebugExecutor()})
    scheduler.add_job(bill, "interval", seconds=INTERVAL, coalesce=True, misfire_grace_time=None)
    scheduler.start()
