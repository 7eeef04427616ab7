"""Five users on one machine, recorded: python train.py TRACE (pfl 0.6 and torch)."""

import sys

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from record import RecordUploads


def main(path):
    class Regression(torch.nn.Linear):
        def loss(self, x, y, eval=False):
            return torch.nn.functional.mse_loss(self(x)[:, 0], y)

        def metrics(self, x, y, eval=False):
            return {}

    def records(user):
        rng = np.random.default_rng(user)
        x = rng.normal(size=(8 + user, 4)).astype(np.float32)
        y = (x @ np.arange(4)).astype(np.float32)
        return Dataset((torch.from_numpy(x), torch.from_numpy(y)), user_id=str(user))

    torch.manual_seed(0)
    module, users = Regression(4, 1), list(range(5))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = FederatedDataset(records, get_user_sampler("minimize_reuse", users))
    recording = RecordUploads(path)
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints(), recording])
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=3,
            evaluation_frequency=10,
            train_cohort_size=len(users),
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=0.05, local_num_epochs=1, local_batch_size=4
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=8),
        callbacks=[recording],
    )


if __name__ == "__main__":
    main(sys.argv[1])
