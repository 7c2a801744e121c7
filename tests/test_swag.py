"""SWAG: against a naive computation from the stored weights, resuming, and batch norm."""

import copy
import math

import pytest
import torch
from torch import nn

from bayesadam.posterior import LowRankGaussian
from bayesadam.swag import SWAG
from posterior.kinds import F64, assert_same, covariance, draw, flat


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 4, **F64), nn.BatchNorm1d(4, **F64), nn.Linear(4, 2, **F64))


def walk(model, steps, seed=0):
    """Moves the weights at random; gives where they have been, flat."""
    places = []
    for step in range(steps):
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p += 0.1 * draw(*p.shape, seed=seed + 100 * step + i)
        places.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        yield torch.stack(places)


def naive(places, rank, scale):
    """Maddox et al. 2019, Algorithm 1 and section 3.3, with all weights at hand."""
    mean = places.mean(0)
    diagonal = (places**2).mean(0) - mean**2
    deviations = torch.stack([places[i] - places[: i + 1].mean(0) for i in range(len(places))])[-rank:]
    return mean, scale * (diagonal.diag() + deviations.T @ deviations / (len(deviations) - 1))


def close(a, b, **tolerances):
    torch.testing.assert_close(a, b, **(tolerances or {"rtol": 1e-11, "atol": 1e-13}))


@pytest.mark.parametrize("steps", [2, 5, 12])
@pytest.mark.parametrize("scale", [0.5, 1.3])
def test_is_the_papers_gaussian(model, steps, scale):
    swag = SWAG(model, rank=5)
    for places in walk(model, steps):  # noqa: B007
        swag.collect()
    q = swag.posterior(scale=scale)
    mean, expected = naive(places, 5, scale)
    close(flat(q.mean), mean)
    close(covariance(q), expected)
    assert type(q) is LowRankGaussian
    assert q.rank == min(steps, 5)
    assert q.hyperparameters == {"method": "swag", "rank": 5, "count": steps, "scale": scale, "batch_norm": "training"}
    assert repr(swag) == f"SWAG(rank=5, {steps} collected)"


def test_rank_zero_is_swag_diagonal(model):
    swag = SWAG(model, rank=0)
    for places in walk(model, 4):  # noqa: B007
        swag.collect()
    q = swag.posterior(scale=1.0)
    assert q.rank == 0
    close(flat(q.variance), places.var(0, correction=0))


def test_small_variances_of_large_weights():
    model = nn.Linear(1, 1, bias=False)
    swag = SWAG(model)
    values = [1000.0 + k * 2.0**-12 for k in (0, 1, 0, 3, 2)]
    for value in values:
        nn.init.constant_(model.weight, value)
        swag.collect()
    q = swag.posterior(scale=1.0)
    assert q.mean["weight"].dtype == torch.float32
    expected = torch.tensor(values, **F64).var(correction=0).item()
    assert q.diagonal["weight"].item() == pytest.approx(expected, rel=1e-6)


def test_weights_that_never_move_are_point_masses_and_frozen_ones_are_left_out(model):
    model[1].requires_grad_(False)
    swag = SWAG(model)
    for _ in range(3):
        with torch.no_grad():
            model[0].weight += 0.1
        swag.collect()
    q = swag.posterior()
    assert list(q.mean) == [name for name, p in model.named_parameters() if p.requires_grad]
    moved = {name for name, variance in q.variance.items() if variance.any()}
    assert moved == {"0.weight"}
    assert torch.equal(q.sample(1)["2.bias"][0], model[2].bias)


def test_is_a_copy_and_can_go_on(model):
    swag = SWAG(model, rank=3)
    walked = walk(model, 8)
    for _ in range(4):
        next(walked)
        swag.collect()
    q = swag.posterior()
    before = copy.deepcopy(q.tensors())
    places = next(walked)
    swag.collect()
    assert_same(q.tensors(), before)
    close(covariance(swag.posterior()), naive(places, 3, 0.5)[1])


@pytest.mark.parametrize("collected", [0, 1, 4])
def test_resumes(model, collected, tmp_path):
    swag, walked = SWAG(model, rank=3), walk(model, 9)
    for _ in range(collected):
        next(walked)
        swag.collect()
    torch.save(swag.state_dict(), tmp_path / "state.pt")
    resumed = SWAG(model, rank=3)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(3):
        next(walked)
        swag.collect()
        resumed.collect()
    assert resumed.count == collected + 3
    assert SWAG(model).rank == 20
    assert_same(resumed.posterior().tensors(), swag.posterior().tensors())


class TestRefusals:
    def test_arguments(self, model):
        for rank in (1, -1, 2.0):
            with pytest.raises(ValueError, match=rf"^rank must be 0 or a whole number of at least 2, got {rank}$"):
                SWAG(model, rank=rank)
        for scale in (0.0, math.nan):
            with pytest.raises(ValueError, match=f"^scale must be a positive, finite number, got {scale}$"):
                SWAG(model).posterior(scale=scale)
        with pytest.raises(ValueError, match="^model must have a trainable parameter, got none$"):
            SWAG(model.requires_grad_(False))

    @pytest.mark.parametrize("count", [0, 1])
    def test_too_few_collections(self, model, count):
        swag = SWAG(model)
        for _ in walk(model, count):
            swag.collect()
        with pytest.raises(RuntimeError, match=f"^collect must have been called at least twice, got {count} times$"):
            swag.posterior()

    def test_weights_that_are_not_finite_change_nothing(self, model):
        swag = SWAG(model)
        for _ in walk(model, 3):
            swag.collect()
        before = copy.deepcopy(swag.posterior().tensors())
        nn.init.constant_(model[2].bias, math.nan)
        with pytest.raises(ValueError, match="^the weights of '2.bias' must be finite, got inf or nan$"):
            swag.collect()
        assert_same(swag.posterior().tensors(), before)

    def test_states_of_others(self, model):
        swag, other = SWAG(model, rank=3), nn.Linear(2, 2)
        for _ in walk(model, 3):
            swag.collect()
        with pytest.raises(ValueError, match="^rank must be that of the state, 3, got 4$"):
            SWAG(model, rank=4).load_state_dict(swag.state_dict())
        loading = SWAG(other, rank=3)
        with pytest.raises(ValueError, match="^the state must be of the model's parameters .*'weight': "):
            loading.load_state_dict(swag.state_dict())
        assert loading.count == 0
