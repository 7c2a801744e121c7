"""Networks of one architecture, run at once at several sets of weights each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bayesadam.likelihoods.base import GENERATORS
from bayesadam.population.layout import Layout
from bayesadam.population.modules import constants, places, signature
from bayesadam.population.perceptron import Perceptron, Weights, plain_layers


def initialize(make: Callable[[], nn.Module], *, seeds: Iterable[int]) -> list[nn.Module]:
    """Make one network for each seed, with weights drawn under it; the state of torch's generator is restored."""
    models = []
    with GENERATORS, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        for seed in seeds:
            torch.manual_seed(seed)
            models.append(make())
    return models


class Networks:
    """``P`` networks that differ in the values of their parameters and buffers only.

    Attributes:
        layout: Layout of the trainable parameters.
        fixed: Frozen parameters and buffers that differ between the networks, each ``(P, ...)``.
        common: Frozen parameters and buffers that are equal in all networks.
        template: The module that is run, with the weights of any of them.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        template = models[0]
        expected = signature(template)
        for position, model in enumerate(models):
            if signature(model) != expected:
                raise ValueError(
                    f"models must be of one architecture, got another one at position {position}: {model!r}"
                )
        for name, module in template.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                raise ValueError(
                    "models must not have batch normalisation in training mode, whose statistics mix the examples "
                    f"(use LayerNorm or GroupNorm), got {name!r}"
                )
        trained = {name: p for name, p in template.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError(f"models must have trainable parameters, got none in {template!r}")
        dtypes = {parameter.dtype for parameter in trained.values()}
        if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
            raise ValueError(f"models must have parameters of one dtype, float32 or float64, got {_names(dtypes)}")
        self.layout = Layout({name: p.shape for name, p in trained.items()})
        self.fixed, self.common = constants(models, trained)
        self.template = copy.deepcopy(template)
        layers = None if self.fixed or self.common else plain_layers(self.template)
        self._perceptron = None if layers is None else Perceptron(layers)
        self._places = places(self.template)
        self._modes = [(module, module.training) for module in self.template.modules()]
        self._activations: dict[torch.Size, int] = {}

    def select(self, rows: Tensor) -> Networks:
        """Some of the networks."""
        chosen = copy.copy(self)
        chosen.fixed = {name: value[rows] for name, value in self.fixed.items()}
        return chosen

    def train(self, mode: bool = True) -> None:
        """Training mode, as the models were given, or eval mode."""
        for module, given in self._modes:
            module.training = given and mode

    @torch.no_grad()
    def activations(self, x: Tensor) -> int:
        """Number of values that the layers of one network return for inputs ``x``; counted once for each shape of
        inputs.
        """
        if x.shape in self._activations:
            return self._activations[x.shape]
        counted = 0

        def count(module: nn.Module, inputs: object, output: object) -> None:
            nonlocal counted
            counted += output.numel() if isinstance(output, Tensor) else 0

        layers = [m for m in self.template.modules() if next(m.children(), None) is None]
        hooks = [layer.register_forward_hook(count) for layer in layers]
        before = {name: buffer.clone() for name, buffer in self.template.named_buffers()}
        try:
            self.template(x.clone())
        finally:
            for hook in hooks:
                hook.remove()
        for name, buffer in self.template.named_buffers():
            if not buffer.equal(before[name]):
                raise ValueError(f"models must not change their buffers in a forward pass, got a new value of {name!r}")
        self._activations[x.shape] = counted
        return counted

    def __call__(self, weights: Weights, x: Tensor) -> Tensor:
        """Outputs of the first ``k`` networks at ``S`` sets of weights each.

        Args:
            weights: Weights by name, ``(k, S, *shape)``.
            x: Inputs ``(k, M, ...)``; a network has the same inputs for all its sets of weights.

        Returns:
            Outputs, ``(k, S, M, ...)``.
        """
        perceptron = self.perceptron(x)
        if perceptron is not None:
            return perceptron(weights, x)
        count, samples = next(iter(weights.values())).shape[:2]
        merged = {name: value.flatten(0, 1) for name, value in weights.items()}
        merged |= {name: value[:count].repeat_interleave(samples, 0) for name, value in self.fixed.items()}
        inputs = x.repeat_interleave(samples, 0)
        output = vmap(lambda own, x: self._run({**own, **self.common}, x), randomness="different")(merged, inputs)
        if not isinstance(output, Tensor):
            raise TypeError(f"models must return a tensor, got {type(output).__name__}")
        return output.reshape(count, samples, *output.shape[1:])

    def perceptron(self, x: Tensor) -> Perceptron | None:
        """The networks as plain perceptrons, or None if they are not or take other inputs than ``(k, M, ...)``."""
        return self._perceptron if x.ndim == 3 else None

    def _run(self, weights: Weights, x: Tensor) -> Tensor:
        # Tied weights are passed explicitly, since functional_call's tie_weights leaves batched tensors in modules.
        placed = {place: weights[name] for place, name in self._places.items()}
        output: Tensor = functional_call(self.template, placed, (x,), tie_weights=False)
        return output


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
