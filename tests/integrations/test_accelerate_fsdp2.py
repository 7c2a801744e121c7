"""Accelerate with FSDP2 on two ranks (gloo, CPU): the optimiser's parameters are replaced by shards in ``prepare``.

Accelerate itself turns FSDP on for GPUs only; ``fsdp2_workers.begin`` makes it do so here.
"""

import pytest
import torch

from integrations.comparison import WAYS, weights
from integrations.tasks import BATCH, EPOCHS, ROWS, plain
from two_ranks import in_two_ranks

pytest.importorskip("accelerate", reason="accelerate is not installed")
FUNCTIONS = ["trained", "saved", "resumed", "mixed"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("fsdp2")
    in_two_ranks("integrations.fsdp2_workers", FUNCTIONS, path)
    return path


def assert_as_plain(folder, name, **options):
    """The weights hold the mean at the end, and that is the plain loop's in one process."""
    found, (model, opt) = torch.load(folder / f"{name}.pt"), plain(**options)
    assert found["held"] == "mean"
    torch.testing.assert_close(found["weights"], weights(model), rtol=1e-5, atol=1e-6)
    variance = torch.cat([v.flatten() for v in opt.posterior().variance.values()])
    torch.testing.assert_close(found["variance"], variance, rtol=1e-4, atol=1e-9)
    return found


def test_evaluation(folder):
    found = assert_as_plain(folder, "evaluation")
    assert found["at_mean"] == [True] * (EPOCHS * ROWS // BATCH)


def test_saved(folder):
    found = torch.load(folder / "saved.pt")
    assert torch.equal(found["saved"], found["mean"])
    assert not torch.equal(found["saved"], found["sample"])


@pytest.mark.parametrize("state", ["SHARDED_STATE_DICT", "FULL_STATE_DICT"])
def test_resume(folder, state):
    run, other = torch.load(folder / f"resume-{state}.pt")
    assert torch.equal(run["weights"], other["weights"])
    assert torch.equal(run["variance"], other["variance"])
    torch.testing.assert_close(other["weights"], weights(plain()[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_as_the_plain_loop(folder, way):
    if way != "AMP":
        assert_as_plain(folder, "way", **WAYS[way])
        return
    run, reference = torch.load(folder / "amp.pt")
    assert run["held"] == "mean"
    torch.testing.assert_close(run["weights"], reference["weights"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(run["variance"], reference["variance"], rtol=1e-4, atol=1e-9)
    assert not torch.equal(run["weights"], weights(plain()[0]))
