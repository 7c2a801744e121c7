"""Interrupts at any line: an optimiser is as it was before, or as it is afterwards, and goes on."""

import pytest
import torch

import bayesadam as ba
from interrupts import ACTIONS, interrupt
from optim.conftest import loss_of, make_net, train, weights


def test_an_interrupt_at_a_random_line_leaves_all_as_it_was_or_as_it_becomes():
    counts, failures = interrupt(130, seed=1)
    assert not failures
    assert sum(found["new"] for found in counts.values()) > 5
    for action in ACTIONS:
        assert counts[action]["old"] > 1


def test_a_block_that_is_never_closed_ends_with_its_manager():
    net = make_net()
    opt = ba.Vadam(net.parameters(), num_data=50)
    train(net, opt, 1)
    mean = weights(net)
    manager = opt.sampled_params()
    manager.__enter__()
    assert not torch.equal(weights(net), mean)
    with pytest.raises(RuntimeError, match=r"sampled_params\(\) must not be nested, got a block inside a block"):
        opt.sampled_params().__enter__()
    with pytest.raises(RuntimeError, match=r"step\(\) must be called outside sampled_params\(\), got a call inside"):
        opt.step()
    del manager
    assert torch.equal(weights(net), mean)
    train(net, opt, 1)
    assert not torch.equal(weights(net), mean)


def test_a_block_that_is_not_entered_does_not_count():
    net = make_net()
    opt = ba.Vadam(net.parameters(), num_data=50)
    first, second = opt.sampled_params(), opt.sampled_params()
    opt.eval()
    with second:
        with pytest.raises(RuntimeError, match=r"sampled_params\(\) must not be nested, got a block inside a block"):
            first.__enter__()
        loss_of(net).backward()
    opt.step()
    assert opt.param_groups[0]["noise_step"] == 1


def test_a_block_as_a_decorator():
    net = make_net()
    opt = ba.Vadam(net.parameters(), num_data=50)

    @opt.sampled_params()
    def backward(step):
        loss_of(net, step).backward()

    for step in range(2):
        backward(step)
        opt.step()
    other = make_net()
    plain = ba.Vadam(other.parameters(), num_data=50)
    train(other, plain, 2)
    assert torch.equal(weights(net), weights(other))
    assert not opt._engine.open


def test_an_interrupt_while_squares_are_taken_does_not_stop_them_for_good():
    net = make_net()
    opt = ba.VOGN(net.parameters(), num_data=50, curvature=ba.PerExampleSquares(net))
    train(net, opt, 1)
    opt._source.squares._collector.paused = True  # as an interrupt in the line that sets it back leaves it
    train(net, opt, 1, first=1)
    other = make_net()
    plain = ba.VOGN(other.parameters(), num_data=50, curvature=ba.PerExampleSquares(other))
    train(other, plain, 2)
    assert torch.equal(weights(net), weights(other))
