"""The regressions against the textbook's formulas, written out."""

import numpy as np
import pytest
import torch

from bayesadam.bandits.regression import RATE, SHAPE, ArmRegressions

AGENTS, ACTIONS, WIDTH, ROWS = 2, 3, 4, 25


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(AGENTS, ROWS, WIDTH, generator=generator, dtype=torch.float64)
    actions = torch.randint(ACTIONS, (AGENTS, ROWS), generator=generator)
    return x, actions, torch.randn(AGENTS, ROWS, generator=generator, dtype=torch.float64) + x[..., 0]


def arms(noise_precision=None, prior_precision=0.5):
    return ArmRegressions(AGENTS, ACTIONS, WIDTH, prior_precision=prior_precision, noise_precision=noise_precision)


def posterior(x, rewards, ridge):
    """Mean and inverse precision, in units of the noise variance, one row after another."""
    precision, moment = ridge * np.eye(WIDTH), np.zeros(WIDTH)
    for row, reward in zip(x.numpy(), rewards.numpy(), strict=True):
        precision += np.outer(row, row)
        moment += row * reward
    return np.linalg.solve(precision, moment), np.linalg.inv(precision), precision


@pytest.mark.parametrize("noise_precision", [None, 4.0])
def test_means_and_covariances_are_those_of_the_textbook(rows, noise_precision):
    found = arms(noise_precision)
    found.add(*rows)
    x, actions, rewards = rows
    draws = torch.stack([found.sample(number, seeds=[5, 6]) for number in range(6000)])
    for agent in range(AGENTS):
        for action in range(ACTIONS):
            own = actions[agent] == action
            ridge = 0.5 / (noise_precision or 1.0)
            mean, inverse, precision = posterior(x[agent, own], rewards[agent, own], ridge)
            assert np.allclose(found.mean()[agent, action].numpy(), mean, atol=1e-10)
            if noise_precision is None:
                shape = SHAPE + 0.5 * own.sum().item()
                rate = RATE + 0.5 * ((rewards[agent, own] ** 2).sum().item() - mean @ precision @ mean)
                covariance = inverse * rate / (shape - 1.0)
            else:
                covariance = inverse / noise_precision
            drawn = draws[:, agent, action].numpy()
            errors = np.sqrt(np.diag(covariance) / len(drawn))
            assert (abs(drawn.mean(0) - mean) < 4.5 * errors).all()
            # The standard error of a variance is about 2% of it for 6,000 draws, and a little more for heavy tails.
            assert np.allclose(np.diag(np.cov(drawn.T)) / np.diag(covariance), 1.0, atol=0.11)


def test_standardised_rewards_have_the_regressions_of_standardised_rewards(rows):
    x, actions, rewards = rows
    x[..., -1] = 1.0
    found, expected = (
        ArmRegressions(AGENTS, ACTIONS, WIDTH, prior_precision=0.5, noise_precision=None, standardize=standardize)
        for standardize in (True, False)
    )
    own = 1e-4 * rewards + 3.0
    shift, scale = own.mean(1), own.std(1, correction=0)
    found.add(x, actions, own)
    expected.add(x, actions, (own - shift[:, None]) / scale[:, None])
    offset = shift[:, None, None] * torch.tensor([0.0] * (WIDTH - 1) + [1.0], dtype=torch.float64)
    for own, standard in ((found.mean(), expected.mean()), (found.sample(2, [3, 4]), expected.sample(2, [3, 4]))):
        assert torch.allclose((own - offset) / scale[:, None, None], standard, atol=1e-5)
    assert not found.sample(2, [3, 4]).isnan().any()


def test_row_by_row_is_all_at_once(rows):
    one, other = arms(), arms()
    one.add(*rows)
    for row in range(ROWS):
        other.add(*(part[:, row : row + 1] for part in rows))
    for name, value in one.tensors().items():
        assert torch.allclose(value, other.tensors()[name], atol=1e-10), name
    assert torch.allclose(one.sample(3, [1, 2]), other.sample(3, [1, 2]), atol=1e-8)


def test_means_follow_rows_that_come_after_a_draw(rows):
    found, fresh = arms(), arms()
    found.add(*(part[:, :10] for part in rows))
    found.sample(0, [1, 2])
    found.add(*(part[:, 10:] for part in rows))
    fresh.add(*rows)
    assert torch.allclose(found.mean(), fresh.mean(), atol=1e-10)


def test_samples_depend_on_seed_and_number_only(rows):
    found = arms()
    found.add(*rows)
    first = found.sample(7, [1, 2])
    assert torch.equal(first, found.sample(7, [1, 2]))
    assert not torch.equal(first, found.sample(8, [1, 2]))
    assert torch.equal(first[1], found.sample(7, [9, 2])[1])
    assert torch.equal(found.sample(7, [1, 2], width=0.0), found.mean())


def test_new_actions_have_their_prior(rows):
    found = arms(noise_precision=4.0)
    found.add(*rows)
    before = found.mean().clone()
    found.grow(2)
    assert torch.equal(found.mean()[:, :ACTIONS], before)
    draws = torch.stack([found.sample(number, [1, 2])[:, ACTIONS:] for number in range(2000)])
    assert draws.mean().abs() < 0.03
    assert draws.var().item() == pytest.approx(2.0, rel=0.05)
    found.forget()
    assert not found.mean().any()
