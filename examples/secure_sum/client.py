"""One client of a secure sum over HTTP: its vector leaves it masked.

    python examples/secure_sum/client.py KEYS 3 --port 8700

`--die` kills the process between upload and reveal; `--lie` sends wrong shares.
"""

import argparse
import http.client
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from fedaudit.errors import FedauditError
from fedaudit.protections.secure_aggregation import (
    Client,
    ClientLedger,
    ClientRules,
    Directory,
    Identity,
    wire,
)

BOUND = 16.0
"""No number of a vector may be larger. Terms that state another bound are refused."""


class Line:
    """The way to the server: signed, and tried again; every repeat has the same bytes."""

    def __init__(self, port, number, identity):
        self.port, self.number, self.identity = port, number, identity

    def send(self, step, message):
        path = f"/{step}/{self.number}"
        signature = self.identity.sign("http", path.encode() + b"|" + message).hex()
        for attempt in range(5):
            try:
                link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                link.request("POST", path, message, {"Signature": signature})
                answer = link.getresponse()
                body = answer.read()
                link.close()
                break
            except OSError:
                if attempt == 4:
                    raise
                time.sleep(0.2)
        if answer.status != 200:
            sys.exit(f"the server refused: {body.decode()}")
        return body


def update(number, length):
    """What the client would have trained."""
    return np.random.default_rng(number).normal(size=length)


def wrong(shares, client, identity):
    """Every share off by one bit, numbers and kinds as they should be, signed by the liar."""
    body = shares[: -wire.SIGNATURE_BYTES]
    lies = b"".join(
        body[at : at + 41] + bytes([body[at + 41] ^ 1]) for at in range(0, len(body), 42)
    )
    return wire.signed(identity, "reveal", client._signed, lies)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("keys", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--lie", action="store_true")
    args = parser.parse_args()
    public = json.loads((args.keys / "public.json").read_text())
    identity = Identity(bytes.fromhex((args.keys / f"{args.number}.key").read_text()))
    threshold = args.clients // 2
    client = Client(
        args.number,
        run="e" * 32,
        round_number=1,
        identity=identity,
        directory=Directory({int(n): bytes.fromhex(key) for n, key in public.items()}),
        ledger=ClientLedger(
            args.number, threshold=threshold, path=args.keys / f"{args.number}.ledger"
        ),
        rules=ClientRules(threshold=threshold, bound=BOUND),
    )
    line = Line(args.port, args.number, identity)
    try:
        roster = line.send("keys", client.advertise())
        inbox = line.send("shares", client.share(roster))
        vector = client.ring().encode(update(args.number, args.length))
        line.send("upload", client.upload(inbox, vector))
        again = client.upload(inbox, vector)  # a retry: the same bytes
        uploads = line.send("upload", again)
        if args.die:
            os.kill(os.getpid(), signal.SIGKILL)
        views = line.send("view", client.confirm(uploads))
        shares = client.reveal(views)
        line.send("reveal", wrong(shares, client, identity) if args.lie else shares)
    except FedauditError as error:
        sys.exit(f"refused [{error.code}]: {error}")


if __name__ == "__main__":
    main()
