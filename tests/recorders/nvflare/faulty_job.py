"""A job of FLARE's simulator in which sites fail: python faulty_job.py TRACE WORKSPACE.

Sites send differences; the third one raises in round 2 and the second one refuses its task in
round 3. The server keeps momentum (as FedOpt with SGD does) and steps in the memory of the model
that it sent. Run by test_simulator.py, and without these
failures, in POC mode, by tests/nightly/test_nvflare.py.
"""

import sys
import time

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import (
    InTimeAccumulateWeightedAggregator,
)
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.job_config.api import FedJob

from fedaudit.recorders.nvflare import FedauditRecorder

ROUNDS, SITES, MOMENTUM, WIDTH = 4, 3, 0.5, 4


def update(site, number, faults=True):
    """The difference that a site sends in round `number` (from 0); None if it fails."""
    failed = {(3, 1), (2, 2)} if faults else ()
    own = np.random.default_rng((site, number)).normal(size=WIDTH)
    return None if (site, number) in failed else own


def weight(site):
    return 10 * site


class Site(Executor):
    def __init__(self, faults=True, pause=0.0):
        super().__init__()
        self.faults, self.pause = faults, pause  # FLARE writes them into the job's config

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        time.sleep(self.pause)
        number = shareable.get_header(AppConstants.CURRENT_ROUND)
        site = int(fl_ctx.get_identity_name()[-1])
        own = update(site, number, self.faults)
        if own is None and site == 2:
            return make_reply(ReturnCode.BAD_TASK_DATA)
        if own is None:
            raise RuntimeError("the scanner was switched off")
        (name,) = from_shareable(shareable).data
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: weight(site)}
        return DXO(DataKind.WEIGHT_DIFF, data={name: own}, meta=meta).to_shareable()


class Momentum(FullModelShareableGenerator):
    def __init__(self):
        super().__init__()
        self.speed = 0.0

    def shareable_to_learnable(self, shareable, fl_ctx):
        model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        ((name, mean),) = from_shareable(shareable).data.items()
        self.speed = MOMENTUM * self.speed + mean
        model[ModelLearnableKey.WEIGHTS][name] += self.speed  # in place
        return model


def build(trace, *, faults=True, pause=0.0):
    job = FedJob(name="faulty", min_clients=2, meta_props={"scope": "research"})
    job.to_server(NPModelPersistor(model=[0.0] * WIDTH), id="persistor")
    job.to_server(Momentum(), id="generator")
    aggregator = InTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHT_DIFF)
    job.to_server(aggregator, id="aggregator")
    flow = ScatterAndGather(
        min_clients=2,
        num_rounds=ROUNDS,
        wait_time_after_min_received=10,  # on a busy machine a site asks late
        aggregator_id="aggregator",
        persistor_id="persistor",
        shareable_generator_id="generator",
    )
    job.to_server(flow)
    job.to_server(FedauditRecorder(trace), id="fedaudit")
    job.to_clients(Site(faults, pause), tasks=["train"])
    return job


def main(trace, workspace):
    build(trace).simulator_run(workspace, n_clients=SITES, threads=SITES)


if __name__ == "__main__":
    from faulty_job import main as run  # FLARE imports the components by this name

    run(*sys.argv[1:3])
