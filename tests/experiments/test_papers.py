"""The map from the papers to the code: what it names exists. And a theorem of which the code has both sides."""

import importlib
import itertools
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import bayesadam as ba

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
CELLS = [cell.strip() for line in (ROOT / "docs/papers.md").read_text().splitlines() for cell in line.split(" | ")]
NAMES = sorted({name for cell in CELLS for name in re.findall(r"`((?:bayesadam|experiments)\.[\w.]+)`", cell)})
PATHS = sorted({path for cell in CELLS for path in re.findall(r"`((?:tests|experiments)/[\w./:]+)`", cell)})


PACKAGES = {"bayesadam.integrations.stable_baselines3": "stable_baselines3", "experiments.half_cheetah": "gymnasium"}
"""Packages without which a part of the code cannot be imported."""


def test_the_map_has_names():
    assert len(NAMES) > 40
    assert len(PATHS) > 30


@pytest.mark.parametrize("name", NAMES)
def test_code_exists(name):
    for start, package in PACKAGES.items():
        if name.startswith(start):
            pytest.importorskip(package, reason=f"needs {package}")
    module, rest = name, ""
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
    for attribute in filter(None, rest.split(".")):
        found = getattr(found, attribute)


@pytest.mark.parametrize("path", PATHS)
def test_tests_and_experiments_exist(path):
    file, _, name = path.partition("::")
    assert (ROOT / file).exists()
    if name:
        assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_theorem_1(size):
    """Over all minibatches, Vadam's curvature is ``w h + (1 - w) g^2`` in the mean, with VOGN's ``h`` of all data."""
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)

    def curvature(rows, method, **options):
        net = nn.Linear(3, 1, dtype=torch.float64)
        nn.init.constant_(net.weight, 0.5)
        nn.init.constant_(net.bias, -0.2)
        own = {"curvature": ba.PerExampleSquares(net)} if method is ba.VOGN else {}
        groups = [{"params": list(net.named_parameters()), "perturb": False}]
        optimizer = method(groups, lr=0.0, num_data=5, betas=(0.0, 0.0), **own)
        with optimizer.sampled_params():
            optimizer.zero_grad()
            mse_loss(net(x[rows]), y[rows]).backward()
        optimizer.step()
        (key,) = {"exp_avg_sq", "hessian"} & optimizer.state[net.weight].keys()
        return optimizer.state[net.weight][key].clone()

    everything = list(range(5))
    minibatches = [list(rows) for rows in itertools.combinations(everything, size)]
    mean = torch.stack([curvature(rows, ba.Vadam) for rows in minibatches]).mean(0)
    share = (5 - size) / (size * (5 - 1))
    expected = share * curvature(everything, ba.VOGN) + (1 - share) * curvature(everything, ba.Vadam)
    torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-14)
