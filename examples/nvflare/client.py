"""A site of the example: one step of logistic regression on its own numbers."""

import numpy as np
import nvflare.client as flare

flare.init()
site = flare.get_site_name()
rng = np.random.default_rng(sum(map(ord, site)))
x = rng.normal(size=(100, 4))
y = (x @ rng.normal(size=4) > 0).astype(np.float64)

while flare.is_running():
    received = flare.receive()
    (name,) = received.params
    w = np.asarray(received.params[name], dtype=np.float64)
    for _ in range(10):
        w = w - 0.5 * x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(x)
    flare.send(flare.FLModel(params={name: w}, meta={"NUM_STEPS_CURRENT_ROUND": len(x)}))
