"""A server and eight clients as processes on this machine; one is killed, one lies.

    python examples/secure_sum/run.py FOLDER

Client 3 is killed between upload and reveal, client 5 sends wrong shares: the sum of all eight
comes out, and the liar is named. Then a server that shows two lists of uploads is refused.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from fedaudit.files import write_atomically
from fedaudit.protections.secure_aggregation import Identity, RingQuantiser

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from client import BOUND, update  # noqa: E402

CLIENTS, LENGTH = 8, 1000


def make_keys(folder):
    """What whoever runs the federation hands out: a key for each, all public keys to everybody."""
    folder.mkdir(parents=True)
    identities = {n: Identity.new() for n in (-1, *range(CLIENTS))}
    for n, identity in identities.items():
        write_atomically(folder / f"{n}.key", identity.secret.hex(), private=True)
    public = {n: i.public.hex() for n, i in identities.items()}
    (folder / "public.json").write_text(json.dumps(public))


def run(folder, server=(), clients=None):
    """The server's result, and what each client said in the end."""
    make_keys(folder)
    start = [sys.executable, "-u"]
    command = [*start, str(HERE / "server.py"), str(folder), "--length", str(LENGTH), *server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        port = process.stdout.readline().split()[-1]
        parties = {
            n: subprocess.Popen(
                [
                    *(*start, str(HERE / "client.py"), str(folder), str(n), "--port", port),
                    *("--length", str(LENGTH), *(clients or {}).get(n, ())),
                ],
                stderr=subprocess.PIPE,
                text=True,
            )
            for n in range(CLIENTS)
        }
        said = {n: (p.communicate()[1], p.returncode) for n, p in parties.items()}
        return json.loads(process.stdout.read()), said


def main():
    folder = Path(sys.argv[1])
    result, said = run(folder / "sum", ("--patience", "10"), {3: ["--die"], 5: ["--lie"]})
    total = sum(update(n, LENGTH) for n in range(CLIENTS))
    error = float(np.abs(np.array(result["sum"]) - total).max())
    bound = RingQuantiser(BOUND, CLIENTS).error(CLIENTS)
    lies = {int(n): len(shares) for n, shares in result["liars"].items()}
    print(f"client 3 was killed ({said[3][1]}), wrong shares: {lies}")
    print(f"the sum of {result['of']}, off by {error:.1e} (at most {bound:.1e})")
    result, said = run(folder / "lie", ("--lie", "--patience", "3"))
    print(f"a server with two lists: {result.get('refused', 'a sum')}")
    print("\n".join(text.strip().splitlines()[0] for text, _ in said.values() if text))


if __name__ == "__main__":
    main()
