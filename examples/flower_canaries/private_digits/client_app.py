"""A site: trains by DP-SGD with Opacus, and keeps coins in `site-N/key.json`."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedaudit.flower import site_name_mod
from private_digits.task import load_data, make_model, train

app = ClientApp(mods=[site_name_mod()])


@app.train()
def train_here(message: Message, context: Context) -> Message:
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition = int(context.node_config["partition-id"])
    x, y = load_data(partition, int(context.node_config["num-partitions"]))
    train(model, x, y, partition, context.run_config)
    metrics = MetricRecord({"num-examples": len(x)})
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(records), reply_to=message)
