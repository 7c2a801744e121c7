"""Ctrl-C at any line of the library, in the main thread: all is as it was before or as it is afterwards."""

import contextlib
import random
import signal
import sys
from pathlib import Path

import pytest
import torch

import bayesadam as ba
from optim.methods import Method, loss_of, made, make_net, make_step, mean_of, same, snapshot, train, weights

LIBRARY = str(Path(ba.__file__).parent)


class Interrupting:
    """Sends SIGINT before the line of the library that comes as number ``at``, from 1; counts the lines."""

    def __init__(self, at=None):
        self.at, self.count = at, 0

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._enter)

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _enter(self, frame, event, arg):
        return self._line if frame.f_code.co_filename.startswith(LIBRARY) else None

    def _line(self, frame, event, arg):
        if event == "line":
            self.count += 1
            if self.count == self.at:
                signal.raise_signal(signal.SIGINT)
        return self._line


def started(key, drop_in=False):
    """A network and its optimiser after two steps, always the same ones; a step is made in parts."""
    net = make_net()
    opt = Method(key)(net, [{"params": list(net[part].named_parameters(str(part)))} for part in (0, 2)])
    train(net, opt, 2)
    if drop_in:
        opt.train()
    return net, opt


def state_of(opt):
    return snapshot(opt)[1], opt.param_groups[0]["noise_step"], mean_of(opt)


ACTIONS = {
    "blocks": lambda net, opt: make_step(opt, lambda: loss_of(net, 3)),
    "closure": lambda net, opt: make_step(opt, lambda: loss_of(net, 3), "closure"),
    "drop-in": lambda net, opt: make_step(opt, lambda: loss_of(net, 3), "train"),
    "train()": lambda net, opt: opt.train(),
    "eval()": lambda net, opt: opt.eval(),
}
TRIALS = 20


@pytest.mark.parametrize("key", ["vadam", "ivon eager", "vogn"])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_interrupt_leaves_all_as_it_was_or_as_it_becomes(key, action):
    """And training goes on as from a checkpoint of what was left."""
    act, drop_in = ACTIONS[action], action in ("drop-in", "eval()")
    act(*started(key, drop_in))  # kernels are compiled and caches filled
    net, opt = started(key, drop_in)
    before, lines = state_of(opt), Interrupting()
    with lines:
        act(net, opt)
    after = state_of(opt)
    for at in random.Random(1).sample(range(1, lines.count + 1), min(TRIALS, lines.count)):
        net, opt = started(key, drop_in)
        with contextlib.suppress(KeyboardInterrupt), Interrupting(at):
            act(net, opt)
        assert same(state_of(opt), before) or same(state_of(opt), after), f"torn at line {at} of {lines.count}"
        opt.zero_grad()
        opt.eval()
        assert torch.equal(weights(net), mean_of(opt))
        other, resumed = started(key)
        other.load_state_dict(net.state_dict())
        resumed.load_state_dict(opt.state_dict())
        for each, its in ((net, opt), (other, resumed)):
            train(each, its, 1, first=7)
        assert torch.equal(weights(net), weights(other))


@pytest.mark.parametrize("when", ["before the first block", "between two blocks", "after the last block"])
def test_an_interrupt_between_blocks_gives_up_the_step(when):
    net, opt = made(Method("ivon"), mc_samples=2)
    blocks = {"before the first block": 0, "between two blocks": 1, "after the last block": 2}[when]
    mean = weights(net)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(blocks):
            with opt.sampled_params():
                loss_of(net).backward()
        signal.raise_signal(signal.SIGINT)
    assert torch.equal(weights(net), mean)
    train(net, opt, 1)
    assert opt.state[net[0].weight]["step"] == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt inside of __del__
@pytest.mark.parametrize("key", ["vadam", "ivon eager", "vogn"])
@pytest.mark.parametrize("samples", [1, 2])
def test_a_loop_that_was_interrupted_can_be_run_again(key, samples):
    """As a cell of a notebook, in which gradients are cleared inside of the blocks only."""

    def cell(net, opt):
        for number in range(2):
            for _ in range(samples):
                with opt.sampled_params():
                    opt.zero_grad()
                    loss_of(net, number).backward()
            opt.step()

    def fresh():
        net, opt = made(Method(key), mc_samples=samples)
        cell(net, opt)
        return net, opt

    cell(*fresh())
    arguments, lines = fresh(), Interrupting()
    with lines:
        cell(*arguments)
    places = random.Random(2).sample(range(1, lines.count + 1), min(3 * TRIALS, lines.count))
    refused = 0
    for at in places:
        net, opt = fresh()
        with contextlib.suppress(KeyboardInterrupt), Interrupting(at):
            cell(net, opt)
        steps = int(opt.state[net[0].weight]["step"])
        try:
            cell(net, opt)
        except RuntimeError:  # between the last block and its step: a block too many, once
            refused += 1
            cell(net, opt)
        assert opt.state[net[0].weight]["step"] == steps + 2, f"line {at} of {lines.count}"
    assert refused <= 0.1 * len(places)
