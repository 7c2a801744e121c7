"""Exceptions of signal handlers at any bytecode of the library: the next call puts the weights right."""

import contextlib
import os
import random
import signal
import sys
from pathlib import Path

import pytest
import torch

import bayesadam as ba
from optim.methods import Method, loss_of, made, make_net, mean_of, train, weights

LIBRARY = str(Path(ba.__file__).parent)
SIGNALS = [signal.SIGINT, signal.SIGALRM, signal.SIGTERM]


class Interrupted(BaseException):
    """Raised by the handlers."""


class Interrupting:
    """Sends a signal before the bytecode of the library that comes as number ``at``, from 1; counts the bytecodes."""

    def __init__(self, at=None, number=signal.SIGINT):
        self.at, self.count, self.number = at, 0, number

    def __enter__(self):
        def handler(*_):
            raise Interrupted

        self.before = sys.gettrace(), signal.signal(self.number, handler)
        sys.settrace(self._enter)

    def __exit__(self, *_):
        sys.settrace(self.before[0])
        signal.signal(self.number, self.before[1])

    def _enter(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        frame.f_trace_opcodes = True
        return self._opcode

    def _opcode(self, frame, event, arg):
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                signal.raise_signal(self.number)
        return self._opcode


def blocks(net, opt):
    """As a cell of a notebook, in which gradients are cleared inside of the blocks only."""
    for number in range(2):
        for _ in range(opt.param_groups[0]["mc_samples"]):
            with opt.sampled_params():
                opt.zero_grad()
                loss_of(net, number).backward()
        opt.step()


def closure(net, opt):
    def compute():
        opt.zero_grad()
        loss = loss_of(net)
        loss.backward()
        return loss

    for _ in range(2):
        opt.step(compute)


def drop_in(net, opt):
    opt.train()
    for number in range(2):
        opt.zero_grad()
        loss_of(net, number).backward()
        opt.step()
    opt.eval()


def loop_of_drop_in(net, opt):
    """Without ``train()``, which was called in a cell before."""
    for number in range(2):
        opt.zero_grad()
        loss_of(net, number).backward()
        opt.step()


def interrupted(act, fresh, generator, trials, signals=(signal.SIGINT,)):
    """What ``act`` leaves of things that ``fresh`` makes if random bytecodes interrupt it, and where that was."""
    act(*fresh())  # kernels are compiled and caches filled
    arguments, codes = fresh(), Interrupting()
    with codes:
        act(*arguments)
    for at in generator.sample(range(1, codes.count + 1), trials):
        arguments = fresh()
        with contextlib.suppress(Interrupted), Interrupting(at, generator.choice(signals)):
            act(*arguments)
        yield *arguments, f"bytecode {at} of {codes.count}"


CELLS = {"blocks": blocks, "two samples": blocks, "closure": closure, "drop-in": drop_in, "loop": loop_of_drop_in}
TRIALS = int(os.environ.get("INTERRUPT_TRIALS", "6"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an exception inside of __del__
@pytest.mark.filterwarnings("ignore:.*was entered again:UserWarning")
@pytest.mark.parametrize("key", ["vadam", "ivon eager", "vogn"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_that_was_interrupted_simply_runs_again(key, cell):
    act, samples = CELLS[cell], 2 if cell == "two samples" else 1

    def fresh():
        net = make_net()
        groups = [{"params": list(net[part].named_parameters(str(part)))} for part in (0, 2)]  # so steps have parts
        opt = Method(key)(net, groups, mc_samples=samples)
        train(net, opt, 1)
        if cell == "loop":
            opt.train()
        return net, opt

    for net, opt, where in interrupted(act, fresh, random.Random(f"{key} {cell}"), TRIALS, SIGNALS):
        steps = int(opt.state[net[0].weight]["step"])
        act(net, opt)
        assert opt.state[net[0].weight]["step"] == steps + 2, where
        opt.eval()
        assert torch.equal(weights(net), mean_of(opt)), where
        distance = (mean_of(opt) - weights(make_net())).abs().max()
        assert distance < 0.5, f"{where}: the mean is a sample, at a distance of {distance}"


@pytest.mark.parametrize("key", ["vadam", "ivon eager"])
@pytest.mark.parametrize("call", ["eval", "train", "posterior", "block"])
def test_a_first_sample_that_was_interrupted_is_taken_back_by_the_next_call(key, call):
    """Where the mean in the state is not the one in the weights: weights changed since the last step."""

    def fresh():
        net, opt = made(Method(key))
        train(net, opt, 1)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(1.0)
        return net, opt

    mean = weights(fresh()[0])
    for net, opt, where in interrupted(lambda net, opt: opt.train(), fresh, random.Random(3), TRIALS):
        if call == "block":
            opt.eval()
            with opt.sampled_params():
                assert not torch.equal(weights(net), mean)
        elif call == "posterior":
            assert torch.equal(torch.cat([v.flatten() for v in opt.posterior().mean.values()]), mean)
            opt.eval()
        else:
            getattr(opt, call)()
            opt.eval()
        assert torch.equal(weights(net), mean), where


def test_an_end_that_was_interrupted_leaves_the_weights_in_charge(monkeypatch):
    """Between the entry that says that they hold the mean and the rest of ``eval()``."""
    net, opt = made(Method("vadam"))
    train(net, opt, 1, mode="train")

    def fail():
        raise Interrupted

    monkeypatch.setattr(torch, "clear_autocast_cache", fail)
    with pytest.raises(Interrupted):
        opt.eval()
    opt._engine.weights.flats, opt._engine.weights.writing = opt._engine.layout.built, "next"  # as a bytecode earlier
    monkeypatch.undo()
    opt.zero_grad()
    with torch.no_grad():
        net[0].weight.add_(1.0)
    assert torch.equal(opt.posterior().mean["0.weight"], net[0].weight)


def test_a_step_with_a_full_covariance_that_was_interrupted_runs_again():
    def act(net, opt):
        opt.step(lambda: loss_of(net))

    def fresh():
        net = make_net()
        return net, ba.DenseVON(net.named_parameters(), num_data=50, mc_samples=2)

    for net, opt, where in interrupted(act, fresh, random.Random(4), 5 * TRIALS):
        mean = torch.cat([value.flatten() for value in opt.posterior().mean.values()])
        assert torch.equal(weights(net), mean.double()), where
        assert (mean - torch.cat([p.flatten() for p in make_net().parameters()])).abs().max() < 0.05
        act(net, opt)


@pytest.mark.parametrize("when", ["before the first block", "between two blocks", "after the last block"])
def test_an_interrupt_between_blocks(when):
    net, opt = made(Method("ivon"), mc_samples=2)
    count = {"before the first block": 0, "between two blocks": 1, "after the last block": 2}[when]
    mean = weights(net)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(count):
            with opt.sampled_params():
                loss_of(net).backward()
        signal.raise_signal(signal.SIGINT)
    assert torch.equal(weights(net), mean)
    train(net, opt, 1)
    assert opt.state[net[0].weight]["step"] == 1
