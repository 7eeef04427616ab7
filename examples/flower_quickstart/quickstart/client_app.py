"""What a site does when the server asks it to train or to evaluate."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import accuracy, load_data, make_model, train

app = ClientApp()


def site(message: Message, context: Context):
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    partition = int(context.node_config["partition-id"])
    return model, load_data(partition, int(context.node_config["num-partitions"]))


@app.train()
def train_here(message: Message, context: Context) -> Message:
    model, ((x, y), _) = site(message, context)
    config = context.run_config
    train(model, x, y, config["local-epochs"], config["learning-rate"], config["batch-size"])
    metrics = MetricRecord({"num-examples": len(x)})
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(records), reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    model, (_, (x, y)) = site(message, context)
    metrics = MetricRecord({"num-examples": len(x), "accuracy": accuracy(model, x, y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
