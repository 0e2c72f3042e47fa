#!/usr/bin/env python3
"""A Telegram bot that answers each message with the same text.

The bot asks for updates by long polling. Telegram allows one poller. It answers "409 Conflict: terminated by other getUpdates request" to
the earlier of two. Telegram forgets an update when a bot asks for a later one, so this bot asks only after it has answered.
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
    """Stop at SIGTERM, after the messages that were received are answered."""
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
    call("getUpdates", {"offset": offset, "limit": 1, "timeout": 0})  # otherwise the next bot gets these updates again


if __name__ == "__main__":
    main()
