"""The experiments on MNIST, made short: every method goes from training to the report."""

import functools
import os

import pytest
import torch

import bayesadam as ba
from experiments import runner
from experiments.mnist.evaluation import predictive, scores
from experiments.mnist.training import train
from experiments.mnist_bbb.experiment import MNIST
from experiments.mnist_bbb.settings import CANDIDATES
from experiments.mnist_pruning.experiment import METHODS, Pruning
from experiments.results import Store, finished

pytestmark = pytest.mark.skipif(not os.environ.get("BAYESADAM_DATA"), reason="needs BAYESADAM_DATA: MNIST")

SHORT = {"epochs": 1, "hidden": 16, "train": 600, "mc_samples": 3}


class InFolder:
    """Results go to a temporary folder."""

    @property
    def folder(self):
        return self._folder


class ShortMNIST(InFolder, MNIST):
    def __init__(self, folder):
        chosen = {name: candidates[:2] for name, candidates in CANDIDATES.items()}
        super().__init__(chosen, 1, **SHORT, held_out=100, validation_samples=2)
        self._folder = folder


class ShortPruning(InFolder, Pruning):
    def __init__(self, folder):
        super().__init__(METHODS, 1, **SHORT)
        self._folder = folder


def run(experiment, folder):
    summary = runner.run(experiment, jobs=1, runs=folder / "runs")
    assert summary.failed == {}
    results = finished(experiment.units(), Store.of(experiment, folder / "runs"))
    assert set(results) == {unit.key for unit in experiment.units()}
    return {key: result.result for key, result in results.items()}, experiment.report(results)


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """To decompress, check and standardise all images takes longer than these short trainings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ba.data, "load", functools.cache(ba.data.load))
        yield


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mnist")
    with pytest.MonkeyPatch.context() as patch:
        # Compiling takes longer than all of the training.
        patch.setattr("bayesadam.engine.kernels.available", lambda: False)
        return run(ShortMNIST(folder), folder)


SEARCHED = {name: candidates for name, candidates in CANDIDATES.items() if not name.startswith("bbb")}


def test_all_methods_that_are_searched_have_the_same_budget():
    assert {len(candidates) for candidates in SEARCHED.values()} == {3}
    own = {"epochs", "batch_size", "hidden", "train", "held_out", "seed"}
    assert not any(own & set(candidate) for candidates in CANDIDATES.values() for candidate in candidates)


def test_the_final_runs_have_the_setting_with_the_best_validation_nll(mnist):
    results, _ = mnist
    for name in SEARCHED:
        found = {key: r for key, r in results.items() if key in (f"search-{name}-0", f"search-{name}-1")}
        best = min(found, key=lambda key: found[key]["validation"]["nll"])
        final = results[f"final-{name}-0"]
        assert final["chosen"] == best
        assert final["setting"] == found[best]["setting"]
    (own,) = CANDIDATES["bbb-mixture"]
    assert results["final-bbb-mixture-0"]["setting"]["options"] == own["options"]


def test_scores_are_of_all_test_images(mnist):
    results, _ = mnist
    for name in CANDIDATES:
        final = results[f"final-{name}-0"]
        for method in {"adam": ("mean",)}.get(name, ("monte_carlo", "mean")):
            assert sum(final[method]["entropy"]["in"]) == sum(final[method]["entropy"]["out"]) == 10_000
            assert 0 < final[method]["error"] < 95
            assert 0 <= final[method]["auroc"] <= 1


def test_the_report_puts_published_errors_beside_ours(mnist):
    _, report = mnist
    text = "\n".join(table.markdown() for table in report.tables)
    assert "| BBB, scale mixture | " in text
    assert "| 1.36 |" in text  # published, with 400 units
    assert set(report.figures) == {"scores"}


def test_pruning_from_training_to_the_report(tmp_path):
    results, report = run(ShortPruning(tmp_path), tmp_path)
    curves = {f"{key}/{name}" for key, result in results.items() for name in result["curves"]}
    assert curves == {
        "badam-0/badam",
        "badam-0/magnitude",
        "badam-0/mc-dropout",
        *(f"{name}-0/posterior" for name in ("vadam", "ivon", "bbb")),
    }
    for result in results.values():
        for curve in result["curves"].values():
            assert curve["fractions"] == list(ba.pruning.FRACTIONS)
            assert all(0 <= value <= 1 for value in curve["accuracy"])
    badam = results["badam-0"]["curves"]
    assert badam["badam"]["accuracy"][0] == badam["magnitude"]["accuracy"][0]  # nothing gone: the same network
    assert badam["badam"]["accuracy"] != badam["magnitude"]["accuracy"]
    assert "0.940" in report.tables[0].markdown()  # published Badam at 90%
    assert set(report.figures) == {"curves"}


def test_the_learning_rate_ends_at_zero_and_training_is_reproducible():
    data = ba.data.load("mnist")
    config = {**SHORT, **METHODS["ivon"], "batch_size": 128, "seed": 3}
    found = [train(config, data.x_train[:600], data.y_train[:600], lambda *_: None) for _ in range(2)]
    assert found[0].optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)
    for name, mean in found[0].distribution.mean.items():
        assert torch.equal(mean, found[1].distribution.mean[name])


def test_scores_against_their_definitions():
    data = ba.data.load("mnist")
    config = {**SHORT, "method": "adam", "dropout": 0.2, "options": {"lr": 0.001}, "batch_size": 128, "seed": 0}
    trained = train(config, data.x_train[:600], data.y_train[:600], lambda *_: None)
    x, y = data.x_test[:500], data.y_test[:500]
    mean = predictive(trained, x, method="mean")
    logits = trained.model.eval()(x).detach()
    found = scores(mean, y)
    assert found["error"] == pytest.approx(100 * (logits.argmax(1) != y).double().mean().item())
    assert found["nll"] == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-5)
    assert set(found) == {"error", "nll", "ece"}
    assert set(scores(predictive(trained, x, mc_samples=3), y, predictive(trained, x, mc_samples=3))) == {
        "error",
        "nll",
        "ece",
        "auroc",
        "auroc_mutual_information",
    }
