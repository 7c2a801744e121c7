"""One vocabulary of curvatures, and files that were written with the names of earlier versions."""

from pathlib import Path

import pytest
import torch

import bayesadam as ba
from bayesadam.curvature.names import CURVATURES, current_name, with_current_names
from bayesadam.files import NoDigestWarning
from bayesadam.optim.newton import HESSIANS
from bayesadam.population.members import _POSSIBLE
from bayesadam.posthoc.network import CURVATURES as OF_LAPLACE

OLD = Path(__file__).parents[1] / "files" / "tables" / "classifier"


def test_every_name_in_use_is_one_of_them():
    assert {*OF_LAPLACE, *HESSIANS} == set(CURVATURES) > set(_POSSIBLE["hessian"])
    page = (Path(__file__).parents[2] / "docs" / "methods" / "index.md").read_text()
    assert all(f'| `"{name}"` |' in page for name in CURVATURES)


@pytest.mark.parametrize(("name", "today"), [("gauss_newton", "empirical_fisher"), ("fisher", "empirical_fisher")])
def test_earlier_names(name, today):
    assert current_name(name) == today
    assert with_current_names({"components": [{"curvature": name}, 1]}) == {"components": [{"curvature": today}, 1]}


@pytest.mark.parametrize("name", [*CURVATURES, None, 1.0, ["fisher"], {"a": "fisher"}])
def test_anything_else_stays(name):
    assert current_name(name) == name
    assert with_current_names({"hessian": name, "note": "fisher"}) == {"hessian": name, "note": "fisher"}


def test_a_posterior_of_an_earlier_version(tmp_path):
    tensors = {"w": torch.tensor([1.0, 2.0])}
    told = {"method": "laplace", "structure": "diagonal", "prior_precision": 2.0}
    ba.DiagonalGaussian(tensors, tensors, hyperparameters={**told, "curvature": "fisher"}).save(
        tmp_path / "q.safetensors"
    )
    read = ba.load_posterior(tmp_path / "q.safetensors")
    assert read.hyperparameters == {**told, "curvature": "empirical_fisher"}
    torch.testing.assert_close(read.variance, tensors, rtol=0, atol=0)


def test_an_estimator_that_was_saved_by_an_earlier_version():
    assert b"gauss_newton" in (OLD / "posterior.safetensors").read_bytes()
    with pytest.warns(NoDigestWarning):
        read = ba.load_posterior(OLD / "posterior.safetensors")
    assert [own["hessian"] for own in read.hyperparameters["components"]] == ["empirical_fisher"] * 2
    assert [q.hyperparameters["hessian"] for q in read.components] == ["empirical_fisher"] * 2
