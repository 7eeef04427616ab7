"""A plain PyTorch loop, one client after another: what one would write first."""

from __future__ import annotations

import torch
import workload
from torch import Tensor


def main() -> None:
    work = workload.from_command_line()
    torch.set_num_threads(work.threads)
    net = workload.module(work.model)
    parts = workload.clients(work.data)

    def rounds(count: int) -> dict[str, Tensor]:
        start = {k: v.clone() for k, v in net.state_dict().items()}
        for _ in range(count):
            total = {k: torch.zeros_like(v) for k, v in start.items()}
            for x, y in parts:
                net.load_state_dict(start)
                workload.train_client(net, x, y, work)
                for k, v in net.state_dict().items():
                    total[k] += v
            start = {k: v / len(parts) for k, v in total.items()}
        return start

    workload.timed(work, lambda: rounds(1), lambda: rounds(work.rounds))


if __name__ == "__main__":
    main()
