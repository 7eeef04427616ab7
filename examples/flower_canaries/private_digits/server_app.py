"""The server: federated averaging, recorded."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedaudit.flower import RecordingStrategy
from private_digits.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = RecordingStrategy(FedAvg(fraction_evaluate=0.0), "trace")
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
    )
