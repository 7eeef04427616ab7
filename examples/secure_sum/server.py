"""The aggregator of one secure sum, over HTTP: it learns the sum and nothing else.

    python examples/secure_sum/server.py KEYS --port 8700 --clients 8 --length 1000

Every step is closed when all have sent their message, or after `--patience` seconds: who is late is
left out. `--lie` shows one half of the clients another list of uploads: they refuse.
"""

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedaudit.errors import FedauditError
from fedaudit.protections.secure_aggregation import (
    Directory,
    Identity,
    RingQuantiser,
    RunPlan,
    Server,
    wire,
)
from fedaudit.protections.secure_aggregation.identity import verify
from fedaudit.protections.secure_aggregation.keys import upload_view

sys.path.insert(0, str(Path(__file__).resolve().parent))
from client import BOUND

STEPS = ("keys", "shares", "upload", "view", "reveal")


class Round:
    """One run: messages in, answers out, steps closed in order."""

    def __init__(self, server, public, patience, lie=False):
        self.server, self.public, self.patience, self.lie = server, public, patience, lie
        self.came = {step: set() for step in STEPS}
        self.closed = threading.Condition()
        self.since = dict.fromkeys(STEPS)
        self.refused = {}
        self.accept = dict(
            zip(
                STEPS,
                (
                    server.enrol,
                    server.accept_shares,
                    server.accept_upload,
                    server.accept_view,
                    server.accept_reveal,
                ),
                strict=True,
            )
        )

    def receive(self, step, number, message):
        with self.closed:
            self.accept[step](number, message)
            self.came[step].add(number)
            self.since[step] = self.since[step] or time.monotonic()
            self.closed.notify_all()

    def wait(self, step):
        """Until all that took the step before have taken this one, or patience ends."""
        at = STEPS.index(step)
        before = self.came[STEPS[at - 1]] if at else set(self.public) - {-1}
        with self.closed:
            if at:  # for keys patience begins with the first, five times: processes have to start
                self.since[step] = self.since[step] or time.monotonic()
            patience = self.patience * (1 if at else 5)
            while not self.came[step] >= before:
                left = (self.since[step] or time.monotonic()) + patience - time.monotonic()
                if left <= 0:
                    break
                self.closed.wait(min(left, 0.2))

    def answer(self, step, number):
        self.wait(step)
        with self.closed:
            if step == "keys":
                return self.server.roster_message()
            if step == "shares":
                return self.server.inbox(number)
            if step == "upload":
                return self.uploads(number)
            return self.server.views(number)

    def uploads(self, number):
        message = self.server.uploads_message()
        if self.lie and number >= len(self.public) // 2:  # client 0 was never here
            bits = bytes([message[0] & 0x7F]) + message[1:-64]
            signed = upload_view(self.server._view, bits)
            return bits + self.server._identity.sign("uploads", signed)
        return message


def longest(plan, clients):
    """Bytes of the longest message that a client has to send: its vector, or shares for all."""
    body = max(plan.length * plan.bits // 8, clients * wire.SHARED_BYTES)
    return body + wire.RECORD_BYTES


def handler(round_):
    most = longest(round_.server.plan, len(round_.public))

    class Handler(BaseHTTPRequestHandler):
        timeout = 60  # seconds without a byte

        def log_message(self, *_):
            pass

        def do_POST(self):
            """/STEP/NUMBER with a client's message; the answer is the next step's request."""
            try:
                _, step, number = self.path.split("/")
                who = int(number)
                signature = bytes.fromhex(self.headers.get("Signature", ""))
                size = int(self.headers.get("Content-Length", 0))
                if size < 0:
                    raise ValueError(size)
            except ValueError:
                return self.reply(400, b"/STEP/NUMBER with a signature in hex, and a length")
            if size > most:
                return self.reply(413, f"too long: {size} bytes, at most {most}".encode())
            body = self.rfile.read(size)
            if step not in STEPS:
                return self.reply(400, b"no step of the protocol")
            content = self.path.encode() + b"|" + body
            if not verify(round_.public.get(who, b""), signature, "http", content):
                return self.reply(403, b"this is not that client's signature")
            try:
                round_.receive(step, who, body)
                self.reply(200, b"" if step == "reveal" else round_.answer(step, who))
            except FedauditError as error:
                round_.refused[who] = str(error)
                self.reply(409, str(error).encode())

        def reply(self, code, body):
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("keys", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--patience", type=float, default=10.0)
    parser.add_argument("--lie", action="store_true")
    args = parser.parse_args()
    public = {
        int(n): bytes.fromhex(key)
        for n, key in json.loads((args.keys / "public.json").read_text()).items()
    }
    plan = RunPlan(
        round=1,
        length=args.length,
        threshold=args.clients // 2,
        run="e" * 32,
        bound=BOUND,
    )
    identity = Identity(bytes.fromhex((args.keys / "-1.key").read_text()))
    server = Server(plan, identity=identity, directory=Directory(public))
    round_ = Round(server, public, args.patience, args.lie)
    http = ThreadingHTTPServer(("127.0.0.1", args.port), handler(round_))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    print(f"listening on {http.server_address[1]}", flush=True)
    for step in STEPS:
        round_.wait(step)
    time.sleep(0.2)  # answers on their way
    try:
        opened = server.open()
        total = RingQuantiser(BOUND, len(server.roster)).decode(opened)
        print(json.dumps({"sum": total.tolist(), "of": server.uploaded, "liars": server.liars}))
    except FedauditError as error:
        print(json.dumps({"refused": error.code, "why": str(error)}))
    http.shutdown()


if __name__ == "__main__":
    main()
