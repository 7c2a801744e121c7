"""The same curvatures, evidence and predictions as laplace-torch, where that is installed.

In a process of its own: its module has the name of this folder.
"""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.laplace import Laplace
from laplace.models import classes, draw

CODE = """
import sys, torch, warnings
warnings.simplefilter("ignore")
import laplace
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)
found = {}
for kind, (net, x, y) in torch.load(sys.argv[1], weights_only=False).items():
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    noise = {} if kind == "classification" else {"sigma_noise": 0.5}
    for subset, structure in (("all", "diag"), ("all", "full"), ("last_layer", "full")):
        fitted = laplace.Laplace(torch.load(sys.argv[1], weights_only=False)[kind][0], kind, subset_of_weights=subset,
                                 hessian_structure=structure, prior_precision=2.0, **noise)
        fitted.fit(loader)
        factor = 4.0 if noise else 1.0
        if noise:
            predicted = fitted(x, pred_type="glm")[1].diagonal(dim1=-2, dim2=-1)
        else:
            predicted = fitted(x, pred_type="glm", link_approx="probit")
        found[kind, subset, structure] = (factor * fitted.H, float(fitted.log_marginal_likelihood()), predicted)
torch.save(found, sys.argv[2])
"""


def _installed():
    try:
        return version("laplace-torch")
    except PackageNotFoundError:
        return None


@pytest.mark.skipif(_installed() is None, reason="needs laplace-torch")
def test_same_as_laplace_torch(tmp_path):
    torch.manual_seed(0)
    problems, likelihoods = {}, {"classification": ba.Categorical(), "regression": ba.Gaussian(4.0).double()}
    likelihoods["regression"].log_noise_precision.copy_(torch.tensor(4.0, dtype=torch.float64).log())
    for kind in likelihoods:
        net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        x = draw(25, 3, seed=1)
        problems[kind] = net, x, classes(25) if kind == "classification" else draw(25, 3, seed=2)
    torch.save(problems, tmp_path / "problems")
    command = [sys.executable, "-c", CODE, tmp_path / "problems", tmp_path / "found"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    structures = {("all", "diag"): "diagonal", ("all", "full"): "full", ("last_layer", "full"): "last_layer"}
    for (kind, *key), (curvature, evidence, predicted) in torch.load(tmp_path / "found", weights_only=False).items():
        net, x, y = problems[kind]
        fitted = Laplace(net, (x, y), likelihood=likelihoods[kind], structure=structures[tuple(key)])
        own = fitted.curvature
        own = torch.cat([v.flatten() for v in own.values()]) if isinstance(own, dict) else own
        torch.testing.assert_close(own, curvature, rtol=1e-9, atol=1e-9)
        assert fitted.log_marginal_likelihood(2.0) == pytest.approx(evidence, rel=1e-9)
        link = {"link": "probit"} if kind == "classification" else {}
        options = {"likelihood": likelihoods[kind], "method": "linearized"}
        result = ba.predict(net, fitted.posterior(2.0), x, **options, **link)
        ours = result.probs if kind == "classification" else result.epistemic
        torch.testing.assert_close(ours, predicted.detach(), rtol=1e-7, atol=1e-8)
