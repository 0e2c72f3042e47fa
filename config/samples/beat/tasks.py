"""What Celery's beat sends, and what a worker does about it.

Beat's own scheduler keeps in a local file when each entry last ran, which stays behind on a lost node: what was due meanwhile is left out.
This one keeps it in Redis. And each run has a name that is the same whoever sends it, so a worker can tell that it has done it.
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

# Notes when an entry last ran, unless a later tenure has noted something, and tells what is noted. Tokens are compared as texts of equal
# length: Lua's numbers are doubles.
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
        """Where this fails, beat ends, and the next one sends this run under the same name."""
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
    """What a run is for. Its name is noted in the step that does it, so it is done once, however often it is sent."""
    store.hsetnx("ledger", self.request.id, time.time())
