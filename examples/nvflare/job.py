"""Record a federation of NVIDIA FLARE: python job.py TRACE WORKSPACE (needs `nvflare` 2.9)."""

import sys
from pathlib import Path

from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe.sim_env import SimEnv

from fedaudit.recorders.nvflare import FedauditRecorder


def main(
    trace: str, workspace: str, clients: int = 3, rounds: int = 3, filters: tuple = ()
) -> None:
    recipe = NumpyFedAvgRecipe(
        name="recorded",
        model=[0.0, 0.0, 0.0, 0.0],
        min_clients=clients,
        num_rounds=rounds,
        train_script=str(Path(__file__).with_name("client.py")),
    )
    # FLARE 2.9's recipes keep their job in `_job`; a FedJob of your own has `job.to_server(...)`
    recipe._job.to_server(FedauditRecorder(trace), id="fedaudit")
    for own in filters:  # what sites do to an answer before it leaves
        recipe._job.to_clients(own, tasks=["train"], filter_type="TASK_RESULT")
    recipe.execute(SimEnv(num_clients=clients, workspace_root=workspace))


if __name__ == "__main__":
    main(*sys.argv[1:3])
