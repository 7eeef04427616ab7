"""scikit-learn's models as torch modules: the same arrays give the same probabilities."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError
from fedaudit.layout import Layout
from fedaudit.randomness import Seed
from fedaudit.settings import check
from fedaudit.tasks.catalogue import ScikitLearn, load_factory, scikit_learn

RNG = np.random.default_rng(4)
X = RNG.normal(size=(90, 5)).astype(np.float32)


def arrays_of(model):
    if isinstance(model, MLPClassifier):
        for i, (w, b) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
            yield f"coefs_.{i}", w
            yield f"intercepts_.{i}", b
    else:
        yield "coef_", model.coef_
        yield "intercept_", model.intercept_


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("activation", [None, "relu", "tanh", "logistic", "identity"])
def test_the_twin_computes_what_the_fitted_model_computes(classes, activation):
    y = np.arange(90) % classes
    if activation is None:
        model, settings = LogisticRegression(), {}
    else:
        model = MLPClassifier((7, 4), activation=activation, tol=1.0, max_iter=50, random_state=1)
        settings = {"estimator": "MLPClassifier", "hidden_layer_sizes": (7, 4)}
        settings["activation"] = activation
    model.fit(X, y)
    names = tuple(map(str, range(classes)))
    data = Dataset(name="d", kind="features", x=X, y=y.astype(np.int64), classes=names)
    task = ScikitLearn(**settings).build(data, Seed(1))
    given = {name: torch.tensor(np.asarray(a), dtype=torch.float32) for name, a in arrays_of(model)}
    task.module.load_state_dict(given)  # same names, same shapes
    with torch.no_grad():
        found = task.module(torch.from_numpy(X)).softmax(-1).numpy()
    assert np.allclose(found, model.predict_proba(X), atol=1e-5)


def test_other_estimators_are_refused():
    with pytest.raises(ConfigError, match="estimator"):
        check(ScikitLearn, {"estimator": "RandomForest"}, "task", also=("kind",))


def test_a_model_is_named_with_its_settings():
    assert scikit_learn("sklearn:LogisticRegression") == ScikitLearn()
    named = scikit_learn("sklearn:MLPClassifier(hidden_layer_sizes=(5, 2), activation='tanh')")
    assert named.hidden_layer_sizes == (5, 2)
    assert named.activation == "tanh"


def test_a_recorded_network_says_its_sizes():
    shapes = {"coefs_.0": (8, 6), "coefs_.1": (6, 3), "intercepts_.0": (6,), "intercepts_.1": (3,)}
    layout = Layout.of(shapes.items())
    assert scikit_learn("sklearn:MLPClassifier", layout).hidden_layer_sizes == (6,)
    typed = scikit_learn("sklearn:MLPClassifier(hidden_layer_sizes=[9])", layout)
    assert typed.hidden_layer_sizes == (9,)


@pytest.mark.parametrize(
    "text",
    ["sklearn:", "sklearn:a.b", "sklearn:MLPClassifier(", "sklearn:MLPClassifier(5)",
     "sklearn:MLPClassifier(activation=print(1))", "sklearn:LogisticRegresion",
     "sklearn:MLPClassifier(activaton='tanh')"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_remedy(text):
    with pytest.raises(ConfigError) as told:
        scikit_learn(text)
    assert told.value.remedy
    assert told.value.expected


def test_without_records_it_is_refused_in_its_own_words():
    with pytest.raises(ConfigError, match="shape follows from records"):
        load_factory("sklearn:LogisticRegression")
