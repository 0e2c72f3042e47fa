"""The schedule that Celery's beat sends, and the task that a worker runs.

Beat's own scheduler stores in a local file when each entry last ran. The file stays behind on a lost node, and what was due meanwhile is
not sent. This scheduler stores it in Redis. Each run has the same name whoever sends it, so a worker knows which runs it has done.
"""

import os
import time
from datetime import datetime

import redis
from celery import Celery, beat

app = Celery("ledger", broker=os.environ["BROKER_URL"])
app.conf.update(
    beat_scheduler="tasks:Scheduler",
    beat_schedule={"book": {"task": "book", "schedule": 1.0}},
    task_ignore_result=True,
)
store = redis.Redis.from_url(os.environ["REDIS_URL"])

# This script stores when an entry last ran, unless a later tenure has stored something, and returns what is stored. It compares tokens as
# texts of equal length, because Lua's numbers are doubles.
NOTE = store.register_script(
    """
    local seen = redis.call('GET', KEYS[1])
    if seen and ARGV[1] < seen then return {'stale'} end
    redis.call('SET', KEYS[1], ARGV[1])
    redis.call(ARGV[2], KEYS[2], ARGV[3], ARGV[4])
    return {'noted', redis.call('HGET', KEYS[2], ARGV[3])}"""
)


class Scheduler(beat.Scheduler):
    def setup_schedule(self):
        super().setup_schedule()
        for entry in self.schedule.values():
            entry.last_run_at = self.note("HSETNX", entry)  # now, if it never ran

    def apply_entry(self, entry, producer=None):
        """Send a run. If this fails, beat ends, and the next beat sends the run under the same name."""
        options = {**entry.options, "task_id": f"{entry.name}@{entry.last_run_at.isoformat()}"}
        self.apply_async(self.Entry(**dict(entry, options=options)), producer=producer, advance=False)
        self.note("HSET", self.schedule[entry.name])

    def note(self, command, entry):
        token = os.environ["FENCING_TOKEN"]
        outcome, *noted = NOTE(["beat:token", "beat:last"], [token.zfill(19), command, entry.name, entry.last_run_at.isoformat()])
        if outcome == b"stale":
            raise RuntimeError(f"token {token} is of a past tenure")
        return datetime.fromisoformat(noted[0].decode())


@app.task(name="book", bind=True, acks_late=True)
def book(self):
    """Do the work of a run. The same step stores its name, so it is done once, however often it is sent."""
    store.hsetnx("ledger", self.request.id, time.time())
