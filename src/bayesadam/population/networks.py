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
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        for seed in seeds:
            torch.manual_seed(seed)
            models.append(make())
    return models


class Networks:
    """``P`` networks that differ in the values of their parameters and buffers only.

    Attributes:
        layout: Of the trainable parameters.
        fixed: Frozen parameters and buffers that differ between the networks, each ``(P, ...)``.
        common: Those that do not, as they are.
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
        dtypes = {parameter.dtype for parameter in trained.values()}
        if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
            raise ValueError(f"models must have parameters of one dtype, float32 or float64, got {_names(dtypes)}")
        self.layout = Layout({name: p.shape for name, p in trained.items()})
        self.fixed: dict[str, Tensor] = {}
        self.common: dict[str, Tensor] = {}
        for name, tensor in _tensors(template):
            if name not in trained:
                values = [dict(_tensors(model))[name].detach() for model in models]
                if all(value.equal(tensor) for value in values):
                    self.common[name] = tensor.detach().clone()
                else:
                    self.fixed[name] = torch.stack(values)
        self._template = copy.deepcopy(template)
        self._layers = None if self.fixed or self.common else _plain_layers(self._template)
        names = {parameter: name for name, parameter in _tensors(self._template)}
        self._places = {
            f"{prefix}{'.' if prefix else ''}{own}": names[tensor]
            for prefix, module in self._template.named_modules()
            for own, tensor in [*module._parameters.items(), *module._buffers.items()]
            if tensor is not None
        }
        self._modes = [(module, module.training) for module in self._template.modules()]
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
        """How many numbers the layers of one network put out for inputs ``x``; counted once for inputs of a shape."""
        if x.shape in self._activations:
            return self._activations[x.shape]
        counted = 0

        def count(module: nn.Module, inputs: object, output: object) -> None:
            nonlocal counted
            counted += output.numel() if isinstance(output, Tensor) else 0

        layers = [m for m in self._template.modules() if next(m.children(), None) is None]
        hooks = [layer.register_forward_hook(count) for layer in layers]
        before = {name: buffer.clone() for name, buffer in self._template.named_buffers()}
        try:
            self._template(x.clone())
        finally:
            for hook in hooks:
                hook.remove()
        for name, buffer in self._template.named_buffers():
            if not buffer.equal(before[name]):
                raise ValueError(f"models must leave their buffers as they are when they are run, got a new {name!r}")
        self._activations[x.shape] = counted
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
        output = vmap(lambda own, x: self._run({**own, **self.common}, x), randomness="different")(merged, inputs)
        if not isinstance(output, Tensor):
            raise TypeError(f"models must return a tensor, got {type(output).__name__}")
        return output.reshape(count, samples, *output.shape[1:])

    def _run(self, weights: Weights, x: Tensor) -> Tensor:
        # Tied ones by hand: with its own ties functional_call leaves a batched tensor in a module that is used twice.
        placed = {place: weights[name] for place, name in self._places.items()}
        output: Tensor = functional_call(self._template, placed, (x,), tie_weights=False)
        return output


class Likelihoods:
    """One likelihood per member, of one kind; they may differ in the values of parameters and buffers.

    Attributes:
        layout: Of the trainable parameters, none for most.
        fixed: All other parameters and buffers, each ``(P, ...)``.
    """

    def __init__(self, likelihoods: Sequence[Likelihood]) -> None:
        for position, likelihood in enumerate(likelihoods):
            if not isinstance(likelihood, Likelihood):
                raise ValueError(f"likelihood must be one of bayesadam's, got {likelihood!r} at position {position}")
            if _signature(likelihood) != _signature(likelihoods[0]):
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
    kinds: list[object] = [
        (name, f"{type(part).__module__}.{type(part).__qualname__}", part.extra_repr())
        for name, part in module.named_modules()
    ]
    return kinds + [(name, t.shape, t.dtype, t.device, t.requires_grad) for name, t in _tensors(module)]


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))


Layers = list[tuple[str, nn.Module]]


def _plain_layers(model: nn.Module) -> Layers | None:
    """The layers of a plain multi-layer perceptron, or ``None`` for any other network."""
    if type(model) is nn.Linear:
        return [("", model)]
    if type(model) is not nn.Sequential or not any(type(layer) is nn.Linear for layer in model):
        return None
    layers = [(f"{name}.", layer) for name, layer in model.named_children()]
    # A layer or a parameter that is used twice is named once.
    distinct = len(layers) == len(model)
    distinct &= len(list(model.parameters())) == sum(len(list(layer.parameters())) for _, layer in layers)
    plain = all(type(layer) is nn.Linear or type(layer) in ELEMENTWISE for _, layer in layers)
    first = next(i for i, (_, layer) in enumerate(layers) if type(layer) is nn.Linear)
    plain &= not any(type(layer) is nn.Dropout for _, layer in layers[:first])  # one mask for all samples of a member
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    return layers if distinct and plain and not hooked else None


def _plain_forward(layers: Layers, weights: Weights, x: Tensor) -> Tensor:
    """A multi-layer perceptron, units before data points: all samples of the first layer are one product with ``x``."""
    count, samples = next(iter(weights.values())).shape[:2]
    hidden, shared, ours = x.transpose(1, 2), True, False
    for prefix, layer in layers:
        if type(layer) is not nn.Linear:  # in place where the memory is ours: fresh memory costs more than the maximum
            hidden, ours = hidden.relu_() if type(layer) is nn.ReLU and ours else layer(hidden), False
            continue
        weight, bias = weights[f"{prefix}weight"], weights.get(f"{prefix}bias")
        rows = (count, samples * layer.out_features) if shared else (count * samples, layer.out_features)
        weight = weight.reshape(*rows, layer.in_features)
        if bias is None:
            hidden = torch.bmm(weight, hidden)
        else:
            hidden = torch.baddbmm(bias.reshape(*rows, 1), weight, hidden)
        hidden, shared, ours = hidden.reshape(count * samples, layer.out_features, -1), False, True
    return hidden.reshape(count, samples, *hidden.shape[1:]).transpose(2, 3)
