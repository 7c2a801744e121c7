"""Interrupts training at random lines of the library, and looks at what is left.

``python tests/interrupts.py [trials] [seed]`` prints how many interrupts left everything as it was before, how many as
it is afterwards, and what was wrong with the others.
"""

import contextlib
import copy
import random
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch

import bayesadam as ba

LIBRARY = str(Path(ba.__file__).parent)


def groups(net):
    """Several, so that a step is made in parts."""
    return [
        {"params": list(net[0].parameters())},
        {"params": [net[2].weight], "lr": 0.02},
        {"params": [net[2].bias], "perturb": False},
    ]


METHODS = {
    "vadam": lambda net, **options: ba.Vadam(groups(net), 0.01, num_data=50, **options),
    "ivon": lambda net, **options: ba.IVON(groups(net), 0.1, num_data=50, **options),
    "vadam low memory": lambda net, **options: ba.Vadam(groups(net), 0.01, num_data=50, low_memory=True, **options),
    "ivon low memory": lambda net, **options: ba.IVON(groups(net), 0.1, num_data=50, low_memory=True, **options),
    "vogn": lambda net, **options: ba.VOGN(
        groups(net), 0.05, num_data=50, curvature=ba.PerExampleSquares(net), **options
    ),
    "von exact full": lambda net, **options: ba.VON(
        groups(net), 0.05, num_data=50, hessian="exact", covariance="full", correction="elementwise", **options
    ),
}
FAILURES = ("stuck", "torn")
ROUNDING = {"vadam low memory": 1e-5, "ivon low memory": 1e-5}
"""How far values may be off: means that are computed from samples of a standard deviation of up to 1 are rounded."""


class Interrupting:
    """Raises ``KeyboardInterrupt`` before the line of the library that comes as number ``at``, from 1."""

    def __init__(self, at=None):
        self.at, self.places = at, []

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _enter(self, frame, event, arg):
        return self._line if frame.f_code.co_filename.startswith(LIBRARY) else None

    def _line(self, frame, event, arg):
        if event == "line":
            self.places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            if len(self.places) == self.at:
                raise KeyboardInterrupt
        return self._line


class Run:
    """A small network and its optimiser after two steps, always the same ones."""

    def __init__(self, method, samples, compiled, drop_in=False):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        self.opt = METHODS[method](self.net, mc_samples=samples, compile=compiled)
        self.samples, self.exact = samples, method == "von exact full"
        for step in range(2):
            self.blocks(step)
            self.opt.step()
        if drop_in:
            self.opt.train()
            self.iteration(2)

    def loss(self, step):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4, 2, generator=generator)
        return torch.nn.functional.mse_loss(self.net(x), torch.randn(4, 1, generator=generator))

    def blocks(self, step):
        self.opt.zero_grad()
        for _ in range(self.samples):
            with self.opt.sampled_params():
                self.opt.backward(self.loss(step))

    def iteration(self, step):
        """Of drop-in training."""
        self.opt.zero_grad()
        self.loss(step).backward()
        self.opt.step()

    def closure(self):
        self.opt.zero_grad()
        loss = self.loss(3)
        if not self.exact:
            loss.backward()
        return loss

    def step(self, step):
        """In the way that the weights ask for."""
        if self.held == "train":
            self.iteration(step)
        else:
            self.blocks(step)
            self.opt.step()

    @property
    def held(self):
        return self.opt.param_groups[0]["weights"]

    def values(self):
        return [parameter.detach().clone() for parameter in self.net.parameters()]

    def kept(self):
        """State and counters."""
        states = [
            {
                **{
                    name: value.clone() if torch.is_tensor(value) else value
                    for name, value in self.opt.state[p].items()
                },
                "mean": self.opt.mean_of(p).clone(),  # the state's own may be in the memory of the weights
            }
            for p in self.net.parameters()
        ]
        return [states, self.opt.param_groups[0]["noise_step"]]


def load_other(run):
    """A checkpoint of another run, which is at another step and may be in drop-in training."""
    other = Run(run.name, run.samples, run.compiled, drop_in=run.drop_in)
    other.step(5)
    other.step(6)
    saved = saved_state(other)
    return lambda: run.opt.load_state_dict(saved)


def saved_state(run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the weights may hold a sample
        return copy.deepcopy(run.opt.state_dict())


def prepare_step(run):
    run.blocks(3)
    return run.opt.step


ACTIONS = {
    "blocks": lambda run: lambda: run.blocks(3),
    "step()": prepare_step,
    "step(closure)": lambda run: lambda: run.opt.step(run.closure),
    "drop-in": lambda run: lambda: run.iteration(3),
    "drop-in step(closure)": lambda run: lambda: run.opt.step(run.closure),
    "train()": lambda run: run.opt.train,
    "eval()": lambda run: run.opt.eval,
    "load_state_dict()": load_other,
    "drop-in load_state_dict()": load_other,
}
DROP_IN = ("drop-in", "drop-in step(closure)", "eval()", "drop-in load_state_dict()")


def make(case):
    method, samples, compiled, action = case
    run = Run(method, samples, compiled, drop_in=action in DROP_IN)
    run.name, run.compiled, run.drop_in = method, compiled, action in DROP_IN
    return run, ACTIONS[action](run)


def cases():
    for method in METHODS:
        for samples in (1, 2):
            for compiled in (False, True):
                for action in ACTIONS:
                    alone = action in DROP_IN or action == "train()"
                    if alone and (samples > 1 or method == "von exact full"):
                        continue
                    if compiled and method == "von exact full":
                        continue
                    yield method, samples, compiled, action


class Reference:
    """What an action does without an interrupt, and when it comes to each line."""

    def __init__(self, case):
        run, act = make(case)
        self.old, self.before = run.kept(), run.values()
        with Interrupting() as lines:
            act()
        self.times = {}
        for number, place in enumerate(lines.places, 1):
            self.times.setdefault(place, []).append(number)
        self.new, self.after = run.kept(), run.values()
        self.held = run.held
        run.opt.eval()
        self.mean_after = run.values()
        run, _ = make(case)
        run.opt.eval()
        self.mean_before = run.values()

    def choose(self, chance):
        """One of the lines, and one of the times that it is come to: those that are seldom are looked at as often."""
        return chance.choice(self.times[chance.choice(list(self.times))])


def same(first, second, rounding=0.0):
    if torch.is_tensor(first):
        return first.shape == second.shape and torch.allclose(first, second, rtol=0.0, atol=rounding)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            same(value, second[name], rounding) for name, value in first.items()
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(same(*pair, rounding) for pair in zip(first, second, strict=True))
    return first == second


def trial(case, reference, at):
    """What is left after an interrupt: ``"old"``, ``"new"``, or what is wrong; and where it came."""
    run, act = make(case)
    lines = Interrupting(at)
    with contextlib.suppress(KeyboardInterrupt), lines:
        act()
    place = lines.places[at - 1]
    try:
        return look(run, reference, case[3]), place
    except Exception as error:
        return f"stuck: {type(error).__name__} {error}", place


def look(run, reference, action):
    kept, values, rounding = run.kept(), run.values(), ROUNDING.get(run.name, 0.0)
    loads = action.endswith("load_state_dict()")
    is_old, is_new = same(kept, reference.old, rounding), same(kept, reference.new, rounding)
    if not (is_old or is_new):
        return "torn: state"
    allowed = [reference.mean_before] if is_old else []
    allowed += [reference.mean_after] if is_new and not loads else [reference.mean_before]
    if run.held == "train":
        allowed = [reference.before] * is_old + [reference.after] * is_new
    if run.held == "block":
        return "torn: a block is left in the weights"
    if not any(same(values, one, rounding) for one in allowed):
        return f"torn: weights, which hold the {run.held}"
    run.opt.zero_grad()  # gives up the samples of an unfinished step
    resumed = rebuilt(run)
    run.step(7)
    resumed.step(7)
    if not same(run.kept(), resumed.kept(), rounding) or not same(run.values(), resumed.values(), rounding):
        return "torn: another run than that of a checkpoint"
    if run.held == "train":
        run.opt.eval()
    mean = run.values()
    with run.opt.sampled_params():
        if same(run.values(), mean, rounding):
            return "stuck: no sample is drawn"
    run.opt.eval()
    if not same(run.values(), mean, rounding):
        return "torn: the mean after a sample"
    run.opt.zero_grad()
    run.blocks(8)
    run.opt.step()
    return "old" if is_old else "new"


def rebuilt(run):
    """A run that goes on from a checkpoint."""
    other = Run(run.name, run.samples, run.compiled)
    other.net.load_state_dict(run.net.state_dict())
    other.opt.load_state_dict(saved_state(run))
    return other


def interrupt(trials, seed=0):
    """Interrupt each case about equally often; returns how often what was left, by action, and the failures."""
    chance = random.Random(seed)
    every = list(cases())
    references = {}
    counts, failures = {action: Counter() for action in ACTIONS}, []
    for number in range(trials):
        case = every[number % len(every)]
        if case not in references:
            make(case)[1]()  # kernels are compiled and caches filled
            references[case] = Reference(case)
        found, place = trial(case, references[case], references[case].choose(chance))
        kind = found.partition(":")[0]
        counts[case[3]][kind] += 1
        if kind in FAILURES:
            failures.append((case, place, found))
    return counts, failures


def main():
    trials, seed = (int(word) for word in [*sys.argv[1:], *["2500", "0"][len(sys.argv) - 1 :]])
    counts, failures = interrupt(trials, seed)
    for action, found in counts.items():
        numbers = ", ".join(f"{found[kind]} {kind}" for kind in ("old", "new", *FAILURES))
        print(f"{action}: {sum(found.values())} interrupts: {numbers}")
    total = sum(counts.values(), Counter())
    print(f"{trials:,} interrupts: " + ", ".join(f"{total[kind]:,} {kind}" for kind in ("old", "new", *FAILURES)))
    for case, place, found in failures:
        print(*case, "at", place, found)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
