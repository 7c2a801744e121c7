"""Networks of one architecture, run at once at several sets of weights each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bayesadam.likelihoods import Likelihood
from bayesadam.population.layout import Layout

ELEMENTWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.Softplus,
    nn.Identity,
    nn.Dropout,
)
Weights = Mapping[str, Tensor]


def initialize(make: Callable[[], nn.Module], *, seeds: Iterable[int]) -> list[nn.Module]:
    """Networks whose weights were drawn under one seed each; torch's generator is left as it was."""
    models = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.manual_seed(seed)
            models.append(make())
    return models


class Networks:
    """``P`` networks that differ in the values of their parameters and buffers only.

    Attributes:
        layout: Of the trainable parameters.
        fixed: Frozen parameters and buffers, each ``(P, ...)``.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        template = models[0]
        signature = _signature(template)
        for position, model in enumerate(models):
            if _signature(model) != signature:
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
        self.layout = Layout({name: p.shape for name, p in trained.items()})
        fixed = [name for name, _ in _tensors(template) if name not in trained]
        self.fixed = {name: torch.stack([dict(_tensors(m))[name].detach() for m in models]) for name in fixed}
        self._template = copy.deepcopy(template)
        self._layers = None if fixed else _plain_layers(self._template)
        self._modes = [(module, module.training) for module in self._template.modules()]

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
        """How many numbers the layers of one network put out for inputs ``x``."""
        counted = 0

        def count(module: nn.Module, inputs: object, output: object) -> None:
            nonlocal counted
            counted += output.numel() if isinstance(output, Tensor) else 0

        layers = [m for m in self._template.modules() if next(m.children(), None) is None]
        hooks = [layer.register_forward_hook(count) for layer in layers]
        try:
            self._template(x)
        finally:
            for hook in hooks:
                hook.remove()
        return counted

    def __call__(self, weights: Weights, x: Tensor) -> Tensor:
        """Outputs of the first ``k`` networks at ``S`` sets of weights each.

        Args:
            weights: By name, ``(k, S, *shape)``.
            x: ``(k, M, ...)``; a network's inputs are the same for all its sets of weights.

        Returns:
            ``(k, S, M, ...)``.
        """
        if self._layers is not None and x.ndim == 3:
            return _plain_forward(self._layers, weights, x)
        count, samples = next(iter(weights.values())).shape[:2]
        merged = {name: value.flatten(0, 1) for name, value in weights.items()}
        merged |= {name: value[:count].repeat_interleave(samples, 0) for name, value in self.fixed.items()}
        inputs = x.repeat_interleave(samples, 0)
        output = vmap(self._run, randomness="different")(merged, inputs)
        if not isinstance(output, Tensor):
            raise TypeError(f"models must return a tensor, got {type(output).__name__}")
        return output.reshape(count, samples, *output.shape[1:])

    def _run(self, weights: Weights, x: Tensor) -> Tensor:
        output: Tensor = functional_call(self._template, dict(weights), (x,))
        return output


class Likelihoods:
    """One likelihood per member, of one kind; they may differ in the values of parameters and buffers.

    Attributes:
        layout: Of the trainable parameters, none for most.
        fixed: All other parameters and buffers, each ``(P, ...)``.
    """

    def __init__(self, likelihoods: Sequence[Likelihood]) -> None:
        signature = _signature(likelihoods[0])
        for position, likelihood in enumerate(likelihoods):
            if not isinstance(likelihood, Likelihood):
                raise ValueError(f"likelihood must be one of bayesadam's, got {likelihood!r} at position {position}")
            if _signature(likelihood) != signature:
                raise ValueError(f"likelihood must be of one kind for all members, got another at position {position}")
        self.members = list(likelihoods)
        self.layout = Layout({name: p.shape for name, p in likelihoods[0].named_parameters() if p.requires_grad})
        fixed = [name for name, _ in _tensors(likelihoods[0]) if name not in self.layout.shapes]
        self.fixed = {n: torch.stack([dict(_tensors(m))[n].detach() for m in likelihoods]) for n in fixed}
        self._density = _Density(likelihoods[0])

    def select(self, rows: Tensor) -> Likelihoods:
        """Some of the members'."""
        chosen = copy.copy(self)
        chosen.members = [self.members[row] for row in rows.tolist()]
        chosen.fixed = {name: value[rows] for name, value in self.fixed.items()}
        return chosen

    def log_density(self, weights: Weights, output: Tensor, target: Tensor) -> Tensor:
        """``log p(y | output)`` of every data point of the first ``k`` members, ``(k, S, M)``.

        Args:
            weights: Of the trainable parameters, ``(k, S, *shape)``.
            output: ``(k, S, M, ...)``.
            target: ``(k, M, ...)``, checked before.
        """
        fixed = {name: value[: len(output)] for name, value in self.fixed.items()}
        if weights:
            run = vmap(vmap(self._run, in_dims=(0, None, 0, None)))
            result: Tensor = run(dict(weights), fixed, output, target)
        else:
            result = vmap(lambda *rest: self._run({}, *rest))(fixed, output, target)
        return result

    def _run(self, weights: Weights, fixed: Weights, output: Tensor, target: Tensor) -> Tensor:
        state = {f"likelihood.{name}": value for name, value in {**weights, **fixed}.items()}
        result: Tensor = functional_call(self._density, state, (output, target))
        return result


class _Density(nn.Module):
    """``log_density`` as a forward method, which ``functional_call`` wants."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood = likelihood

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.likelihood.log_density(output, target)


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _signature(module: nn.Module) -> list[object]:
    """What two networks of one architecture have in common."""
    kinds: list[object] = [(name, type(part), part.extra_repr()) for name, part in module.named_modules()]
    return kinds + [(name, t.shape, t.dtype, t.device, t.requires_grad) for name, t in _tensors(module)]


Layers = list[tuple[str, nn.Module]]


def _plain_layers(model: nn.Module) -> Layers | None:
    """The layers of a plain multi-layer perceptron, or ``None`` for any other network."""
    if type(model) is nn.Linear:
        return [("", model)]
    if type(model) is not nn.Sequential or not any(type(layer) is nn.Linear for layer in model):
        return None
    layers = [(f"{name}.", layer) for name, layer in model.named_children()]
    distinct = len(layers) == len(model)  # a layer that is used twice is named once
    plain = all(type(layer) is nn.Linear or type(layer) in ELEMENTWISE for _, layer in layers)
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    return layers if distinct and plain and not hooked else None


def _plain_forward(layers: Layers, weights: Weights, x: Tensor) -> Tensor:
    """A multi-layer perceptron, units before data points: all samples of the first layer are one product with ``x``."""
    count, samples = next(iter(weights.values())).shape[:2]
    hidden, shared = x.transpose(1, 2), True
    for prefix, layer in layers:
        if type(layer) is not nn.Linear:  # in place where the memory is ours: fresh memory costs more than the maximum
            hidden = hidden.relu_() if type(layer) is nn.ReLU and not shared else layer(hidden)
            continue
        weight, bias = weights[f"{prefix}weight"], weights.get(f"{prefix}bias")
        rows = (count, samples * layer.out_features) if shared else (count * samples, layer.out_features)
        weight = weight.reshape(*rows, layer.in_features)
        if bias is None:
            hidden = torch.bmm(weight, hidden)
        else:
            hidden = torch.baddbmm(bias.reshape(*rows, 1), weight, hidden)
        hidden, shared = hidden.reshape(count * samples, layer.out_features, -1), False
    return hidden.reshape(count, samples, *hidden.shape[1:]).transpose(2, 3)
