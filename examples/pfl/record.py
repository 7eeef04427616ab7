"""Record a federation of Apple's pfl-research (pfl 0.6)."""

from pfl.callback.base import TrainingProcessCallback
from pfl.metrics import Metrics
from pfl.postprocessor.base import Postprocessor

from fedaudit import PUBLIC, SERVER, Recorder
from fedaudit.trace.limits import RecordingLimits


class RecordUploads(Postprocessor, TrainingProcessCallback):
    """Give one object to `postprocessors`, last, and to `callbacks`: it sees what leaves a user."""

    def __init__(self, path):
        self.path, self.sent = path, []

    def on_train_begin(self, *, model):
        self.model = state(model)
        limits = RecordingLimits(on_error="stop")  # a full disk ends the recording alone
        self.recorder = Recorder(self.path, like=self.model, limits=limits)
        return Metrics()

    def postprocess_one_user(self, *, stats, user_context):
        # weighted by then; and a copy: pfl reuses these tensors for the next user
        delta = {k: v.detach().cpu().numpy() / stats.weight for k, v in stats.items()}
        self.sent.append((f"user-{user_context.user_id}", delta, float(stats.weight)))
        return stats, Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        with self.recorder.round() as messages:
            for who, _, _ in self.sent:
                messages.send("model", SERVER, who, self.model, step=0)
            for who, delta, weight in self.sent:
                messages.send("delta", who, SERVER, delta, step=1, weight=weight)
        self.sent, self.model = [], state(model)
        return False, Metrics()

    def on_train_end(self, *, model):
        with self.recorder.last_round() as messages:
            messages.send("model", SERVER, PUBLIC, state(model), step=2)
        self.recorder.close()


def state(model):
    return {k: v.detach().cpu().numpy().copy() for k, v in model.variable_map.items()}
