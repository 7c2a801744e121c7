"""Every refusal, in full; nothing has changed after it."""

import copy

import pytest
import torch
from torch import nn

import bayesadam as ba
from population.conftest import F64, exactly, mlp, models_of, noise_of, regression, train


def other_depth():
    return [*models_of(count=3), nn.Sequential(mlp())]


def one_frozen():
    models = models_of()
    models[2][0].requires_grad_(False)
    return models


def all_frozen():
    return [model.requires_grad_(False) for model in models_of()]


def with_batch_norm():
    return models_of(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(F64))


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x), x


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.net(x)


REFUSALS = {
    "models must have at least one network, got none": {"models": []},
    "epochs must be a whole number of at least 1, got 0": {"epochs": 0},
    "epochs must be a whole number of at least 1, got 1.5": {"epochs": 1.5},
    "batch_size must be a whole number of at least 1, got -1": {"batch_size": -1},
    "patience must be a whole number of at least 1, got 0": {"patience": 0, "validation": regression((4,))[0]},
    "chunk must be a whole number of at least 1, got 0": {"chunk": 0},
    "validation_samples must be a whole number of at least 1, got 0": {"validation_samples": 0},
    "nonfinite must be 'raise' or 'skip', got 'ignore'": {"nonfinite": "ignore"},
    "validation must be given with patience=3, got None": {"patience": 3},
    "data must be one pair or one for each of 4 members, got 3": {"data": regression((4, 5, 6))},
    "validation must be one pair or one for each of 4 members, got 3": {"validation": regression((4, 5, 6))},
    "data of member 2 must have data points, each with a target, got shapes (4, 3) and (3, 2)": {
        "data": [*regression((4, 4)), (torch.zeros(4, 3), torch.zeros(3, 2)), *regression((4,))]
    },
    "validation of member 0 must have data points, each with a target, got shapes (4, 3) and (3, 2)": {
        "validation": (torch.zeros(4, 3), torch.zeros(3, 2))
    },
    "data of member 0 must have data points, each with a target, got shapes (0, 3) and (0, 2)": {
        "data": (torch.zeros(0, 3), torch.zeros(0, 2))
    },
    "data of member 0 must have data points, each with a target, got shapes (4, 3) and ()": {
        "data": (torch.zeros(4, 3), torch.zeros(()))
    },
    "data of member 3 must have inputs like the first ones, (3,) torch.float64, got (2,) torch.float64": {
        "data": [*regression((4, 4, 4)), (torch.zeros(4, 2, dtype=F64), torch.zeros(4, 2, dtype=F64))]
    },
    "models must have parameters of one dtype, float32 or float64, got bfloat16": {
        "models": models_of(lambda: mlp(dtype=torch.bfloat16))
    },
    "models must have parameters of one dtype, float32 or float64, got float32 and float64": {
        "models": models_of(lambda: nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2).double()))
    },
    "data of member 1: target must be of the output's shape (1, 5, 2), got (5, 1)": {
        "data": [*regression((4,)), *regression((5,), 1), *regression((6, 7))]
    },
    "data of member 0: target must be of the output's shape (1, 5, 2), got (5,)": {
        "data": (torch.zeros(5, 3, dtype=F64), torch.zeros(5, dtype=F64))
    },
    "validation of member 1: target must be of the output's shape (1, 5, 2), got (5, 1)": {
        "validation": [*regression((4,)), *regression((5,), 1), *regression((6, 7))]
    },
    "data of member 0: target must be in [0, 2), got 1 to 2": {
        "data": (torch.zeros(5, 3, dtype=F64), torch.tensor([1, 1, 1, 2, 1])), "likelihood": ba.Categorical()
    },
    "likelihood must be one or one for each of 4 members, got 2": {"likelihood": [noise_of(1.0)] * 2},
    "likelihood must be of one kind for all members, got another at position 3": {
        "likelihood": [noise_of(1.0)] * 3 + [noise_of(1.0, 2.0)]
    },
    "likelihood must be a bayesadam.likelihoods.Likelihood, got MSELoss() at position 0": {
        "likelihood": [nn.MSELoss()] * 4
    },
    "likelihood must be a bayesadam.likelihoods.Likelihood, got MSELoss()": {"likelihood": nn.MSELoss()},
    "steps_per_epoch must be a whole number of at least 1, got 0": {"steps_per_epoch": 0, "replacement": True},
    "steps_per_epoch must be given with replacement=True only, got 3": {"steps_per_epoch": 3},
    f"lr_decay must not be given together with lr_schedule, got {abs!r} and {float!r}": {
        "lr_decay": abs, "lr_schedule": float
    },
    f"models must be of one architecture, got another one at position 3: {nn.Sequential(mlp())!r}": {
        "models": other_depth()
    },
    f"models must be of one architecture, got another one at position 2: {mlp()!r}": {"models": one_frozen()},
    f"models must have trainable parameters, got none in {mlp()!r}": {"models": all_frozen()},
    "models must not have batch normalisation in training mode, whose statistics mix the examples "
    "(use LayerNorm or GroupNorm), got '1'": {"models": with_batch_norm()},
    "models must not change their buffers in a forward pass, got a new value of 'calls'": {
        "models": models_of(Counting)
    },
    "prior_precision must have one value for each of 4 members, got 3": {"prior_precision": [1.0, 2.0, 3.0]},
    "seed must have one value for each of 4 members, got 2": {"seed": [1, 2]},
    "seed must be an integer in [0, 2**64), got -1": {"seed": -1},
    "lr must be a number or a 1-element tensor, finite and at least 0, got -1": {"lr": -1},
    "prior_precision must be a positive, finite number or 'init', got 0.0": {"prior_precision": [1.0, 1.0, 0.0, 1.0]},
    "prior_precision must be a number in a population, got 'init'": {"prior_precision": [1.0, 1.0, "init", 1.0]},
    "total_steps must be None for all members or for none, got [5, None, 5, 5]": {"total_steps": [5, None, 5, 5]},
    "betas must be a pair of numbers in [0, 1), got (0.9, 1.0)": {"betas": (0.9, 1.0)},
    "mc_samples must be even when antithetic=True, got 3": {"mc_samples": 3, "antithetic": True},
    "mc_samples must be the same for all members, got different values": {"mc_samples": [1, 2, 1, 1]},
    "antithetic must be the same for all members, got different values": {
        "mc_samples": 2, "antithetic": [True, False, True, True]
    },
    "rescale_lr must be the same for all members, got different values": {
        "method": "ivon", "rescale_lr": [True, False, True, True], "num_data": 50
    },
}  # fmt: skip
TYPE_ERRORS = {
    "maximize must not be given to a population of 'vadam', got True": {"maximize": True},
    f"beta_decay must not be given to a population of 'adam', got {abs!r}": {"method": "adam", "beta_decay": abs},
    "extra must not be given to a population of 'vadam', got None": {"extra": None},
    "mc_samples must not be given to a population of 'adam', got 2": {"method": "adam", "mc_samples": 2},
    "VadaGrad has no prior, so prior_precision must not be given, got 1.0": {
        "method": "vadagrad", "prior_precision": 1.0
    },
    "models must return a tensor, got tuple": {"models": models_of(Pairs)},
}  # fmt: skip


def refuse(error, message, changes, tmp_path):
    arguments = {"models": models_of(), "data": regression(), "likelihood": noise_of(4.0), "epochs": 1, **changes}
    before = [copy.deepcopy(model.state_dict()) for model in arguments["models"]]
    with pytest.raises(error, match=exactly(message)):
        train(**arguments, checkpoint=tmp_path / "run")
    after = [model.state_dict() for model in arguments["models"]]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("message", REFUSALS)
def test_wrong_values(message, tmp_path):
    refuse(ValueError, message, REFUSALS[message], tmp_path)


@pytest.mark.parametrize("message", TYPE_ERRORS)
def test_wrong_kinds(message, tmp_path):
    refuse(TypeError, message, TYPE_ERRORS[message], tmp_path)
