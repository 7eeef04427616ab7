"""fedaudit's own engine, nothing recorded."""

from __future__ import annotations

import numpy as np
import torch
import workload

from fedaudit.data.dataset import Dataset
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import CNN, MLP, VAE


def main() -> None:
    work = workload.from_command_line()
    torch.set_num_threads(work.threads)
    parts, seed = workload.clients(work.data), Seed(1)
    sample = Dataset(
        name="sample",
        kind="image",
        x=parts[0][0].numpy(),
        y=parts[0][1].numpy(),
        classes=tuple(str(i) for i in range(10)),
    )
    kinds = {"mlp": MLP(), "cnn": CNN(channels=(16, 32)), "vae": VAE(hidden=400, latent=20)}
    task = kinds[work.model].build(sample, seed)
    plain = sum(p.numel() for p in workload.module(work.model).parameters())
    assert task.layout.width == plain, "the contestants must train the same model"

    def federation(rounds: int) -> Federation:
        training = Training(learning_rate=work.rate, batch_size=work.batch)
        return Federation(task, ClientData.join(parts), Rounds(rounds=rounds), training, seed)

    run = federation(work.rounds)
    workload.timed(work, federation(1).run, run.run)
    final = run.run()
    assert np.isfinite(final.numpy()).all()


if __name__ == "__main__":
    main()
