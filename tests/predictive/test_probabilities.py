"""Models whose outputs are probabilities where logits are needed."""

import warnings

import pytest
import torch
from torch import nn

import bayesadam as ba
from posterior.kinds import around

MESSAGE = "^the outputs of the model seem to be probabilities, but {} needs logits: "
X = torch.linspace(-1, 1, 120).view(40, 3)
KINDS = {
    "softmax": (nn.Softmax(-1), 4, ba.Categorical()),
    "tempered": (nn.Softmax(-1), 4, ba.Categorical().tempered(2.0)),
    "sigmoid": (nn.Sigmoid(), 1, ba.Bernoulli()),
    "labels": (nn.Sigmoid(), 3, ba.Bernoulli()),
}


def network(last, outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs), last)


def target(outputs, likelihood):
    classes = likelihood.log_probs(torch.zeros(40, outputs)).ndim == 2
    return torch.arange(40) % outputs if classes else torch.arange(40).view(40, 1).expand(40, outputs) % 2.0


def uses(kind, last=None):
    """What warns, for a model that ends in another module than that of the kind."""
    module, outputs, likelihood = KINDS[kind]
    model = network(last or module, outputs)
    data = (X, target(outputs, likelihood))
    options = {"likelihood": likelihood}
    return {
        "predict": lambda: ba.predict(model, around(model), X, **options),
        "mean": lambda: ba.predict(model, around(model), X, method="mean", **options),
        "linearized": lambda: ba.predict(model, around(model), X, method="linearized", **options),
        "laplace": lambda: ba.laplace(model, data, **options),
        "last layer": lambda: ba.laplace(model, data, structure="last_layer", last_layer="2", **options),
        "calibrate": lambda: ba.calibrate(model, data, **options),
        "tune": lambda: ba.tune_posterior(around(model), model, data, **options),
    }


USES = list(uses("softmax"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", list(KINDS))
def test_one_warning_for_a_model(kind, use):
    function = uses(kind)[use]
    name = "Categorical" if isinstance(KINDS[kind][0], nn.Softmax) else "Bernoulli"
    with pytest.warns(UserWarning, match=MESSAGE.format(name)) as caught:
        function()
    assert sum("seem to be probabilities" in str(warning.message) for warning in caught) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    assert not any("seem to be probabilities" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("last", [nn.Identity(), nn.LogSoftmax(-1), nn.Tanh()], ids=lambda last: type(last).__name__)
@pytest.mark.parametrize("use", ["predict", "linearized", "laplace"])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_none_for_logits(kind, use, last):
    uses(kind, last)[use]()


def test_none_where_it_may_be_chance():
    few = network(nn.Sigmoid(), 1)
    ba.predict(few, around(few), X[:20], likelihood=ba.Bernoulli(), method="mean")
    start = network(nn.Identity(), 1)
    nn.init.zeros_(start[2].weight)
    nn.init.zeros_(start[2].bias)
    ba.predict(start, around(start), X, likelihood=ba.Bernoulli(), method="mean")
    share = network(nn.Sigmoid(), 2)
    ba.predict(share, around(share), X, likelihood=ba.Gaussian(), method="mean")


@pytest.mark.parametrize(("kind", "output"), [("softmax", torch.log), ("sigmoid", torch.logit)])
def test_the_advice_works(kind, output):
    module, outputs, likelihood = KINDS[kind]
    model = network(module, outputs)
    found = ba.predict(model, around(model), X, likelihood=likelihood, method="mean", output=output)
    torch.testing.assert_close(found.probs, model(X))


@pytest.mark.parametrize("method", ["monte_carlo", "mean", "linearized", "moments"])
def test_outputs_that_are_no_numbers(method):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.randn(4, 3)
    x[1, 2] = torch.nan
    count = r"10 of 40" if method == "monte_carlo" else "1 of 4"
    with pytest.warns(UserWarning, match=f"^the outputs of the model must be numbers, got NaN for {count} "):
        pred = ba.predict(model, around(model), x, likelihood=ba.Gaussian(1.0), mc_samples=10, method=method)
    assert pred.mean.isnan().flatten().tolist() == [False, True, False, False]
