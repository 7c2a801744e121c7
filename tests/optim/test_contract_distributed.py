"""Several ranks (gloo, CPU): data parallel, FSDP2, sharded checkpoints. What they do is in workers.py."""

import pytest
import torch

from optim.methods import Method, loss_of, make_net, train, weights
from two_ranks import in_two_ranks

FUNCTIONS = [
    "data_parallel",
    "sharded",
    "sharded_on_any_axis",
    "sharded_checkpoint",
    "low_memory_of_a_sharded_network",
    "bad_gradient_in_one_shard",
    "predictions_of_a_sharded_network",
    "sharded_after_the_optimiser",
    "save_sharded",
]
OWN_SAMPLES = [
    "one_sample_for_each_rank",
    "scaled_and_clipped_samples_of_ranks",
    "only_the_second_rank_uses_the_branch",
    "own_samples_are_refused",
]


def test_two_ranks_are_one_process_and_their_checkpoints_go_on_with_any_number(tmp_path):
    in_two_ranks("optim.workers", FUNCTIONS, tmp_path)
    for size in (1, 4):
        in_two_ranks("optim.workers", ["load_resharded"], tmp_path, size=size)


def test_a_sample_for_each_rank(tmp_path):
    in_two_ranks("optim.workers", OWN_SAMPLES, tmp_path)


def test_a_gradient_that_no_rank_has_computed_is_refused():
    net = make_net()
    opt = Method("vadam")(net, rank_samples=True)
    train(net, opt, 1, mode="train")
    opt.zero_grad()
    loss_of(net).backward()
    net[0].bias.grad = None
    opt.step()
    opt.zero_grad()
    net[2](torch.ones(4, 8)).square().mean().backward()
    net[0].bias.grad = torch.ones(8)
    before = weights(net)
    with pytest.raises(RuntimeError, match="curvature of parameter '0.bias' must come with its gradient.*rank_samples"):
        opt.step()
    assert torch.equal(weights(net), before)
