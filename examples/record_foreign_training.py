"""Record a federated training that is not fedaudit's: a plain torch loop, three calls to Recorder.

    python examples/record_foreign_training.py [FOLDER]

Uploads carry names; the audit asks what a server learns if a shuffler removes them.
"""

import sys
from pathlib import Path

import torch

from fedaudit import SERVER, Recorder, audit
from fedaudit.audits import Fingerprint
from fedaudit.protections import Shuffle

SITES, ROUNDS = [f"site-{i}" for i in range(5)], 6


def arrays(model):
    return {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}


def train(model, x, y):
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        sgd.step()


def main(folder: Path) -> None:
    torch.manual_seed(1)
    x = torch.randn(len(SITES), 60, 8)
    y = (x.sum(2) + torch.arange(len(SITES))[:, None] > 2).long()  # clients differ in their classes
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    shared = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    recorder = Recorder(folder / "trace", like=arrays(model))  # call 1: once
    for _ in range(ROUNDS):
        with recorder.round() as wire:  # call 2: every round
            for site in SITES:  # all models first: answers of one round belong together
                wire.send("model", SERVER, site, shared)  # call 3: every message
            uploads = []
            for i, site in enumerate(SITES):
                model.load_state_dict(shared)
                train(model, x[i], y[i])
                wire.send("model", site, SERVER, arrays(model))
                uploads.append({k: v.clone() for k, v in model.state_dict().items()})
        shared = {k: torch.stack([u[k] for u in uploads]).mean(0) for k in shared}
    recorder.close()

    done = audit(folder / "trace", [Fingerprint()], as_if=[Shuffle()])
    for finding in done.findings:
        print(f"{finding.verdict}: {finding.statement}\n  rule {finding.cited}")
    print("report:", done.report)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-foreign"))
