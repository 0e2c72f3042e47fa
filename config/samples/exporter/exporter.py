"""An exporter of cloud costs. It asks an API that has a quota, once in an interval, and serves the answer to Prometheus.

The exporter knows nothing of leases. A scrape costs no call: it gets the latest answer, with its time.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INTERVAL = float(os.environ.get("INTERVAL", "60"))
# The API distinguishes its callers by this name.
CALLER = f"exporter/{uuid.uuid4()}"
heard = {}  # replaced as a whole, by one thread


def listen():
    """Ask the API forever. After an error, wait for the next interval, because each call costs quota."""
    global heard
    request = urllib.request.Request(os.environ["API_URL"] + "/costs", headers={"User-Agent": CALLER})
    due = time.monotonic()
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                heard = {"costs": json.load(answer), "at": time.time()}
        except (OSError, ValueError) as e:
            print(f"the API: {e}", file=sys.stderr, flush=True)
        due += INTERVAL
        time.sleep(max(0, due - time.monotonic()))


class Scrape(BaseHTTPRequestHandler):
    def do_GET(self):
        now = heard
        if not now:  # not Ready before the first answer
            self.send_error(503, "nothing heard yet")
            return
        lines = ["# TYPE cloud_cost_euros gauge"]
        lines += [f'cloud_cost_euros{{service="{name}"}} {cost}' for name, cost in sorted(now["costs"].items())]
        lines += ["# TYPE cloud_cost_heard_seconds gauge", f"cloud_cost_heard_seconds {now['at']}"]
        body = ("\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    host, _, port = os.environ.get("LISTEN", ":9090").rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Scrape)
    threading.Thread(target=listen, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
