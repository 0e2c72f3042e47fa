#!/usr/bin/env python3
"""A Telegram bot that answers each message with its own words.

It asks for updates by long polling. Telegram lets one poller do so, and says "409 Conflict: terminated by other getUpdates
request" to the one that was first. It forgets an update when a later one is asked for; so this one asks when it has answered.
"""

import json
import os
import signal
import urllib.request

API = f"{os.environ.get('API_URL', 'https://api.telegram.org')}/bot{os.environ['BOT_TOKEN']}/"
POLL = 25  # seconds for which the API may wait for an update

polling = stopping = False


class Stopped(Exception):
    """Ends a poll that waits."""


def stop(*_):
    """SIGTERM: what was received is answered first."""
    global stopping
    stopping = True
    if polling:
        raise Stopped


def call(method, parameters, timeout=10):
    request = urllib.request.Request(API + method, json.dumps(parameters).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)["result"]


def poll(offset):
    global polling
    polling = True
    try:
        return [] if stopping else call("getUpdates", {"offset": offset, "limit": 10, "timeout": POLL}, POLL + 10)
    except Stopped:
        return []
    finally:
        polling = False


def main():
    signal.signal(signal.SIGTERM, stop)
    offset = 0
    while not stopping:
        for update in poll(offset):
            message = update.get("message", {})
            if "text" in message:
                call("sendMessage", {"chat_id": message["chat"]["id"], "text": message["text"]})
            offset = update["update_id"] + 1
    call("getUpdates", {"offset": offset, "limit": 1, "timeout": 0})  # or the next bot gets them again


if __name__ == "__main__":
    main()
