"""An ordinary service. It answers on a port while a thread works, and ends at a signal."""
import http.server, itertools, json, os, signal, sys, threading, time, urllib.request

stopping = threading.Event()
finish, received = stopping.set, 0
stops = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGINT", signal.SIGUSR1: "SIGUSR1", signal.SIGRTMIN + 3: "SIGRTMIN+3"}


def stop(number, _):
    global received
    received = number
    print("stopped by", stops[number], flush=True)
    finish()


for number in stops:
    signal.signal(number, stop)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"python\n")

    def log_message(self, *_):
        pass


def write(writer, seq):
    body = json.dumps({"writer": writer, "seq": seq, "sentNanos": time.clock_gettime_ns(time.CLOCK_BOOTTIME)}).encode()
    headers = {"Fencing-Token": os.environ["FENCING_TOKEN"], "Fencing-Resource": os.environ["RESOURCE"]}
    try:
        urllib.request.urlopen(urllib.request.Request(os.environ["SINK"] + "/write", body, headers), timeout=1).close()
    except OSError:
        pass  # refused or lost: the loop continues


server = http.server.ThreadingHTTPServer(("", 8080), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
writer = "%s@%d" % (os.environ["SINGLETONJOB_POD"], time.clock_gettime_ns(time.CLOCK_BOOTTIME))
for seq in itertools.count(1):
    write(writer, seq)
    if stopping.wait(0.1):
        sys.exit(0)
