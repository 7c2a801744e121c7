"""Every experiment: its committed results and page, and one tiny unit of each kind, on made-up data."""

import importlib
import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import joblib
import pytest
import torch

from experiments import NAMES
from experiments.framework import Context, finished, folder_of, page, plain
from experiments.tables import markdown

pytestmark = pytest.mark.nightly

TUNED = {"splits": 2, "folds": 2, "rounds": 2, "startup": 2, "epochs": 2, "hidden": 5}
MNIST = {"epochs": 2, "hidden": 6, "train": 60}
FAWN = {"splits": 2, "iterations": 30, "hidden": 5, "mc_samples": 10}
DESCENT = {"steps": 20, "starts": 5, "tuning_sets": [100], "test_sets": [0, 1], "lr": [0.01, 0.1]}
CURVES = {"iterations": 40, "seeds": 2, "window": 20}
LSTM = {"epochs": 1, "batch_size": 4, "length": 5, "sizes": {"embedding": 3, "hidden": 6, "layers": 1}}
WINDOWS = {"width": 4, "heads": 2, "layers": 1, "length": 6}
DECODER = {"train": 20, "held_out": 4, "batch_size": 4, "sizes": WINDOWS, "samples": 2, "epochs": 0.4, "device": "cpu"}
RESNET = {"train": 40, "held_out": 12, "batch_size": 8, "sizes": {"width": 2, "groups": 1}, "samples": 2, "epochs": 0.4}
ENSEMBLE = {"members": 2, "hidden": 5, "steps": 8, "least_epochs": 1, "batch_size": 20, "lr": 0.01}
PARTS = {"base": 20, "validation": 10, "part": 8, "test": 10, "epochs": 2, "hidden": 6, "batch_size": 5}
CHEETAH = {"environment": "Pendulum-v1", "episodes": 3, "steps": 30, "every": 2, "tests": 2, "batch_size": 8}
TINY = {
    "uci-table1": {
        "vadam-yacht": {**TUNED, "rounds": 3},
        "vprop-yacht": {"epochs": 1, "hidden": 5},
        "bbvi-joint-yacht": TUNED,
        "ropd-boston": TUNED,
        "probe-energy-folds-0": {**TUNED, "log_noise": [1.0, 2.0]},
        "dropout-yacht": {**TUNED, "rates": [0.01, 0.1], "evaluation_samples": 9, "validation_samples": 5},
    },
    "uci-best": {
        "bayesadam-yacht": {"splits": 1, "settings": {"members": 2, "epochs": 5, "hidden": [5]}},
        "deep-ensemble-yacht": {"splits": 2, "settings": ENSEMBLE},
        "gaussian-process-yacht": {"splits": 2},
        "ngboost-yacht": {"splits": 1, "settings": {"trees": 5, "patience": 2, "held_out": 0.2}},
        "catboost-yacht": {"splits": 1, "settings": {"patience": 1, "held_out": 0.2}},
    },
    "logreg-toy": {
        **{key: {"draws": [0, 1], "iterations": 20} for key in ("mf-exact", "von", "vadam-matlab")},
        "von-full": {"iterations": 20},
    },
    "logreg-usps": {"von": {"splits": [0, 1], "iterations": 10}, "vadam": {"splits": [0, 1], "iterations": 20}},
    "logreg-breast-cancer": {"mf-exact": {"splits": [0]}, "vadam-longer-8": {"splits": [0, 0], "iterations": 20}},
    "convergence": {"bbb-m1-s16": CURVES, "vogn-m128-s16": CURVES},
    "toy-regression": {
        "gp": {"restarts": 0},
        "badam": {"steps": 30, "num_data": [10, 100]},
        **{key: {"steps": 30} for key in ("mc-dropout", "bbb", "vadam")},
        "anchored": {"steps": 30, "members": 2},
    },
    "mnist-pruning": {"badam-0": {**MNIST, "mc_samples": 2}, "bbb-0": MNIST},
    "mnist-bbb": {
        "search-ivon-0": {**MNIST, "held_out": 20},
        "final-adam-0": MNIST,
        "100-epochs-mixture-reweighted-0": {**MNIST, "batch_size": 20},
    },
    "fawn-uci": {
        "vi-yacht": FAWN,
        "bern-inputs-yacht": FAWN,
        "probe-ropd-drawn-yacht": FAWN,
        "ropd-year": FAWN,
        "gp-yacht": {"splits": 2, "restarts": 1},
    },
    "fawn-multioutput": {"co-energy": FAWN, "ropd-jura-random": FAWN},
    "fawn-histogram": {"bernoulli": {"iterations": 30, "hidden": 5, "samples": 200, "shown": 2, "bins": 5}},
    "landscape": {"gradient-descent": DESCENT, "annealed": {**DESCENT, "num_data": [1.0]}},
    "half-cheetah": {
        f"{method}-seed0": {**CHEETAH, "hidden": [12, 8], "replay": 50}
        for method in ("vadam", "vadagrad", "adam-explore", "adam-plain", "sgd-explore", "sgd-plain")
    },
    "char-lm": {
        "unit-data": LSTM,
        "lstm-sgd-0": LSTM,
        "transformer-ivon-0": {**LSTM, "length": 6, "samples": [2], "sizes": WINDOWS},
    },
    "bandits": {
        **{key: {"rounds": 30, "runs": 2} for key in ("wheel-0.5-vadam", "wheel-0.5-linear")},
        "prior-statlog-badam-mle-100": {"problem": "wheel-0.5", "rounds": 30, "runs": 2},
    },
    "scale": {
        **{key: DECODER for key in ("text-adamw-0", "text-vogn-0", "gpu-text-bayesadam-0")},
        "search-images-sgd-0": RESNET,
        "images-ivon-opt-0": RESNET,
    },
    "precision": {
        **{key: PARTS for key in ("merge-rotations-ivon-0", "merge-classes-laplace-0", "prune-4-bayesadam-0")},
        "sensitivity-concrete-0": {"rows": 40, "left_out": 2, "hidden": 3},
    },
}
"""Changes of the configs of some units that let them run in a second."""

PACKAGES = {
    "half-cheetah": "gymnasium",
    "ngboost-yacht": "ngboost",
    "catboost-yacht": "catboost",
    "images-ivon-opt-0": "ivon",
}


def module(name):
    return importlib.import_module(f"experiments.{name.replace('-', '_')}")


def made_up(name, split=0, standardize=False):
    """Return data of the shapes of a data set, from a generator of its own."""
    generator = torch.Generator().manual_seed(split)
    if name.startswith("text"):
        codes = torch.randint(5, (401,), generator=generator)
        return SimpleNamespace(x_train=codes[:-1], y_train=codes[1:], target_names=["a", "b", "c", "d", "\n"])
    features = 784 if "mnist" in name else 4
    x = torch.rand(90, features, generator=generator)
    if name.startswith("uci") or name in ("jura", "year"):
        outputs = {"uci/energy-2": 2, "jura": 7}.get(name, 1)
        y = x[:, :1] + torch.randn(90, outputs, generator=generator)
    else:
        y = torch.randint(10 if "mnist" in name else 2, (90,), generator=generator)
    found = {"x": x, "y": y, "x_train": x[:70], "y_train": y[:70], "x_test": x[70:], "y_test": y[70:]}
    return SimpleNamespace(**found)


def context(folder, results=()):
    folder.mkdir(parents=True, exist_ok=True)
    return Context(folder, dict(results), lambda *_: None, joblib.Memory(folder / "memory", verbose=0))


def tiny(name, key):
    return next(replace(u, config={**u.config, **TINY[name][key]}) for u in module(name).units() if u.key == key)


@pytest.fixture
def load(monkeypatch):
    """A function that imports an experiment and replaces the loader in all modules that have imported it."""

    def imported(name):
        experiment = module(name)
        for other, found in list(sys.modules.items()):
            if other.startswith("experiments.") and not other.startswith("experiments.data") and hasattr(found, "load"):
                monkeypatch.setattr(found, "load", made_up)
        return experiment

    return imported


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_page_is_that_of_the_committed_results(name):
    experiment = module(name)
    lines, units = finished(experiment), experiment.units()
    assert len({unit.key.lower() for unit in units}) == len(units)
    assert all(json.loads(json.dumps(unit.config)) == unit.config for unit in units)
    folder = folder_of(experiment)
    assert len((folder / "results.jsonl").read_text().splitlines()) == len(lines)
    text, report = page(experiment)
    assert text == (folder / "README.md").read_text()
    assert {f"{figure}.png" for figure in report.figures} == {path.name for path in folder.glob("*.png")}


@pytest.mark.parametrize("name", NAMES)
def test_every_finished_unit_is_in_a_table(name):
    """The tables change, or cannot be written, without it."""
    experiment = module(name)
    results = {key: line["result"] for key, line in finished(experiment).items()}

    def tables(units):
        return {title: markdown(table) for title, table in experiment.report(units).tables.items()}

    shown = tables(results)
    for key in results:
        if key.replace("table-", "whole-") in results.keys() - {key}:
            continue  # a run of the published length takes its place
        try:
            without = tables({other: result for other, result in results.items() if other != key})
        except (KeyError, IndexError, StopIteration, ValueError, AttributeError, TypeError):
            continue
        assert without != shown, key


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, units in TINY.items() for key in units])
def test_a_tiny_unit_runs(name, key, load, tmp_path):
    if package := PACKAGES.get(name) or PACKAGES.get(key):
        pytest.importorskip(package, reason=f"needs {package}")
    experiment = load(name)
    results = {other: line["result"] for other, line in finished(experiment).items()}
    found = experiment.run(tiny(name, key), context(tmp_path / key, results))
    assert json.dumps(plain(found), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("char-lm", "lstm-sgd-0"),
        ("char-lm", "transformer-ivon-0"),
        ("half-cheetah", "vadam-seed0"),
        ("half-cheetah", "sgd-explore-seed0"),
        ("mnist-pruning", "badam-0"),
        ("mnist-pruning", "bbb-0"),
        ("mnist-bbb", "search-ivon-0"),
        ("uci-table1", "dropout-yacht"),
        ("uci-table1", "vadam-yacht"),
        ("uci-table1", "probe-energy-folds-0"),
        ("bandits", "wheel-0.5-vadam"),
    ],
)
def test_a_killed_training_resumes_to_the_same_result(name, key, load, tmp_path, monkeypatch):
    """The process dies after its first checkpoint, in the second round of tuning, or after half of the cached calls."""
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], reason=f"needs {PACKAGES[name]}")
    experiment, unit, replacing = load(name), tiny(name, key), os.replace
    results = {other: line["result"] for other, line in finished(experiment).items()}
    whole = plain(experiment.run(unit, context(tmp_path / "whole", results)))
    cut = context(tmp_path / "cut", results)

    def save(source, target):
        replacing(source, target)
        raise KeyboardInterrupt

    def progress(done, total, note=""):
        if note == "round 2" or (not note and done >= total / 2):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", save)
        with pytest.raises(KeyboardInterrupt):
            experiment.run(unit, replace(cut, progress=progress))
    assert any(cut.folder.rglob("*.*"))
    assert plain(experiment.run(unit, cut)) == whole
