import math

import pytest
import torch

from bayesadam.conformal import cross_prediction_set, prediction_set
from bayesadam.conformal.sets import scores, uniforms
from bayesadam.predictive import ClassificationPredictive

GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64).mul(2.0).softmax(-1)


def members(probs, tau, u):
    """The set of Romano et al. (2020), eq. 3 to 5: the fewest classes whose sum reaches tau, the last at random."""
    order = sorted(range(len(probs)), key=lambda c: -probs[c])
    total, chosen = 0.0, []
    for c in order:
        chosen.append(c)
        total += probs[c]
        if total >= tau:
            break
    excess = (total - tau) / probs[chosen[-1]]
    return set(chosen[:-1]) if u <= excess else set(chosen)


def test_a_score_is_the_least_sum_with_which_the_class_is_in_the_set():
    probs, draws = drawn(40, 5), torch.rand(40, generator=GENERATOR, dtype=torch.float64)
    for u, found in ((draws, scores(probs, draws)), (torch.ones(40), scores(probs))):
        for row in range(40):
            for c in range(5):
                least = float(found[row, c])
                assert c in members(probs[row].tolist(), least + 1e-9, float(u[row]) + 1e-12)
                if least > 1e-9:
                    assert c not in members(probs[row].tolist(), least - 1e-9, float(u[row]) - 1e-12)


@pytest.mark.parametrize("randomized", [False, True])
def test_sets_are_a_slow_loop(randomized):
    known, new, labels = drawn(30, 4), drawn(50, 4), torch.randint(4, (30,), generator=GENERATOR)
    draws = uniforms(80, 3, torch.device("cpu")).tolist() if randomized else [1.0] * 80

    def score(probs, c, u):
        return sum(p for p in probs if p > probs[c]) + (1.0 - u) * probs[c]

    own = sorted(score(known[i].tolist(), int(labels[i]), draws[i]) for i in range(30))
    tau = own[math.ceil(31 * 0.7) - 1]
    expected = [[score(new[i].tolist(), c, draws[30 + i]) <= tau + 1e-12 for c in range(4)] for i in range(50)]
    found = prediction_set(known, labels, new, coverage=0.7, randomized=randomized, seed=3)
    assert found.tolist() == expected
    predictive = [ClassificationPredictive(probs.log()[None]) for probs in (known, new)]
    again = prediction_set(predictive[0], labels, predictive[1], coverage=0.7, randomized=randomized, seed=3)
    assert again.tolist() == expected


@pytest.mark.parametrize("randomized", [False, True])
def test_cross_sets_are_a_slow_loop(randomized):
    left_out, labels, folds = drawn(30, 4), torch.randint(4, (30,), generator=GENERATOR), torch.arange(30) % 3
    new = drawn(3, 20, 4)
    draws = uniforms(50, 5, torch.device("cpu")) if randomized else torch.ones(50, dtype=torch.float64)
    expected = []
    for x in range(20):
        row = []
        for c in range(4):
            less = 0
            for i in range(30):
                training = scores(left_out[i : i + 1], draws[i : i + 1])[0, labels[i]]
                less += int(training < scores(new[folds[i], x : x + 1], draws[30 + x : 31 + x])[0, c])
            row.append(less < 0.8 * 31)
        expected.append(row)
    found = cross_prediction_set(left_out, labels, folds, new, coverage=0.8, randomized=randomized, seed=5)
    assert found.tolist() == expected


def test_one_model_of_all_rows_makes_the_same_sets():
    known, new, labels = drawn(30, 4), drawn(50, 4), torch.randint(4, (30,), generator=GENERATOR)
    folds = torch.zeros(30, dtype=torch.int64)
    for randomized in (False, True):
        options = {"randomized": randomized, "seed": 1}
        found = cross_prediction_set(known, labels, folds, new[None], coverage=0.8, **options)
        assert torch.equal(found, prediction_set(known, labels, new, coverage=0.8, **options))


def test_coverage_of_many_small_data_sets_is_what_the_theorem_says():
    """Probabilities that are far too sure; with 19 rows and a coverage of 0.8 the rank is a whole number."""
    generator = torch.Generator().manual_seed(4)
    sets, rows, classes = 4_000, 19, 5
    logits = 1.5 * torch.randn(sets, rows + 1, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=generator).view(sets, rows + 1)
    sure = (4.0 * logits).softmax(-1)
    covered, exact, empty = 0, 0, 0
    for seed, (probs, own) in enumerate(zip(sure, labels, strict=True)):
        found = prediction_set(probs[:rows], own[:rows], probs[rows:], coverage=0.8)[0]
        randomized = prediction_set(probs[:rows], own[:rows], probs[rows:], coverage=0.8, randomized=True, seed=seed)[0]
        covered += int(found[own[rows]])
        exact += int(randomized[own[rows]])
        empty += int(not found.any())
    error = math.sqrt(0.16 / sets)
    assert abs(exact / sets - 0.8) < 4 * error
    assert 0.8 - 4 * error < covered / sets < 0.9
    assert empty == 0


def test_cross_sets_with_folds_of_any_whole_type():
    left_out, labels, new = drawn(300, 3), torch.randint(3, (300,), generator=GENERATOR), drawn(60, 20, 3)
    folds = torch.arange(300) % 60
    expected = cross_prediction_set(left_out, labels, folds, new, coverage=0.8)
    assert torch.equal(cross_prediction_set(left_out, labels, folds.to(torch.uint8), new, coverage=0.8), expected)


def test_randomised_sets_may_be_empty_but_are_not_smaller_on_average():
    """Calibrated probabilities; the sets have 1.36 and 1.51 classes on average, with a standard error of 0.02."""
    generator = torch.Generator().manual_seed(5)
    found = {False: [], True: []}
    for seed in range(20):
        probs = (2.0 * torch.randn(399, 4, generator=generator, dtype=torch.float64)).softmax(-1)
        labels = torch.multinomial(probs, 1, generator=generator)[:199, 0]
        for randomized, sizes in found.items():
            options = {"coverage": 0.8, "randomized": randomized, "seed": seed}
            sizes.append(prediction_set(probs[:199], labels, probs[199:], **options).sum(1).double())
    plain, random = (torch.cat(sizes) for sizes in found.values())
    assert random.mean() > plain.mean()
    assert random.min() == 0
    assert plain.min() == 1


def test_bernoulli_labels():
    pred = ClassificationPredictive(drawn(1, 30, 2).log(), binary=True)
    labels = torch.randint(2, (30,), generator=GENERATOR)
    assert prediction_set(pred, labels, pred, coverage=0.9).shape == (30, 2)


def test_errors():
    probs, labels, folds = drawn(30, 4), torch.zeros(30, dtype=torch.int64), torch.arange(30) % 3
    with pytest.raises(ValueError, match=r"labels must be in \[0, 4\), got 0 to 4"):
        prediction_set(probs, labels + 4 * (torch.arange(30) == 7), probs)
    with pytest.raises(ValueError, match=r"labels must be whole numbers of shape \(30,\), got torch.float32 \(30,\)"):
        prediction_set(probs, labels.float(), probs)
    with pytest.raises(
        ValueError, match=r"probabilities must be of shape \(N, C\) with at least 2 classes, got \(30,\)"
    ):
        prediction_set(probs[:, 0], labels, probs)
    with pytest.raises(ValueError, match="probabilities must be numbers, got nan"):
        prediction_set(probs * torch.nan, labels, probs)
    with pytest.raises(ValueError, match="coverage must be at most"):
        prediction_set(probs, labels, probs, coverage=0.99)
    with pytest.raises(ValueError, match=r"^prediction must be of shape \(N, 4\), got \(5, 6\)$"):
        prediction_set(probs, labels, drawn(5, 6))
    with pytest.raises(ValueError, match=r"predictions must be of shape \(F, N, 4\), got \(30, 4\)"):
        cross_prediction_set(probs, labels, folds, probs)
    with pytest.raises(ValueError, match=r"folds must be in \[0, 2\), got 0 to 2"):
        cross_prediction_set(probs, labels, folds, drawn(2, 5, 4))
    with pytest.raises(ValueError, match=r"coverage must be in \[0.5, 1\) of cross-conformal sets, got 0.3"):
        cross_prediction_set(probs, labels, folds, drawn(3, 5, 4), coverage=0.3)
