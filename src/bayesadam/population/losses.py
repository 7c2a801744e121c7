"""The losses of all members and their gradients, at rows of a matrix of parameters."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from bayesadam.checks import check_model
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.calls import has_own_forward, places
from bayesadam.native.device import working_set
from bayesadam.population.batches import Batch, Pair, data_owners
from bayesadam.population.closed import ClosedForm, Tensors
from bayesadam.population.curvature import Gradients, by_autograd, with_squares
from bayesadam.population.layout import Layout
from bayesadam.population.modules import differing_constants, signature
from bayesadam.population.objective import Member, Objective

CACHE = 2**24
"""Approximate memory in bytes of what is computed together on a CPU: the size of a core's caches."""


class Losses:
    """Networks of one architecture, each with a likelihood or objective, which differ in the values of tensors only.

    Args:
        models: One network per member.
        criteria: One likelihood per member, or one objective per member.

    Attributes:
        template: A member; its tensors that are not trained and equal in all members are used for all.
        weights: Layout of the network's trainable weights, which a rule may perturb.
        learned: Layout of the learned parameters of the likelihood or objective, with the prefix ``likelihood``.
        layout: Layout of both, one after the other.
        perturbed: Number of the network's weights.
        noise_sizes: Sizes of the noise's tensors by noise index, as the library's optimiser would number them.
        constants: Tensors that are not trained and differ, each ``(P, ...)``.
        activations: Number of values that a network's layers return for one data point; set by :meth:`check`.
    """

    def __init__(self, models: Sequence[nn.Module], criteria: Sequence[Likelihood | Objective]) -> None:
        for model in models:
            check_model(model)
        _check_alike("models must be of one architecture", models)
        kind = "objective" if isinstance(criteria[0], Objective) else "likelihood"
        _check_alike(f"{kind} must be of one kind for all members", criteria)
        _check_loss(criteria[0])
        members = [Member(*pair) for pair in zip(models, criteria, strict=True)]
        self.template = copy.deepcopy(members[0])
        prepare_for_vmap(self.template)
        trained = {name: p for name, p in self.template.named_parameters() if p.requires_grad}
        _check_network(self.template.model)
        self.weights = Layout({_public(n): p.shape for n, p in trained.items() if n.startswith("model.")})
        self.learned = Layout({n: p.shape for n, p in trained.items() if n.startswith("likelihood.")})
        self.layout = Layout({**self.weights.shapes, **self.learned.shapes})
        numbered = enumerate(self.template.model.parameters())  # frozen ones count
        self.noise_sizes = {index: p.numel() for index, p in numbered if p.requires_grad}
        self.perturbed = self.weights.numel
        self.constants = {_public(name): value for name, value in differing_constants(members, trained).items()}
        named = {place: _public(name) for place, name in places(self.template).items()}
        self._places = {place: n for place, n in named.items() if n in self.layout.shapes or n in self.constants}
        self._closed = ClosedForm.of(self.template, self.weights, self.learned, self.constants)
        self._modes = [(module, module.training) for module in self.template.modules()]
        self.activations = 1

    def select(self, rows: Tensor) -> Losses:
        """The losses of some of the members."""
        chosen = copy.copy(self)
        chosen.constants = {name: value[rows] for name, value in self.constants.items()}
        return chosen

    def train(self, mode: bool = True) -> None:
        """Set the networks to training mode, as they were given, or to eval mode."""
        for module, was_training in self._modes:
            module.training = was_training and mode

    def losses(self, theta: Tensor, batch: Batch) -> Tensor:
        """Mean loss over the minibatch, ``(k, S)``, of the first ``k`` members at parameters ``(k, S, numel)``."""
        count, samples = theta.shape[:2]
        values = {name: value.flatten(0, 1) for name, value in self.layout.split(theta).items()}
        values |= {name: value[:count].repeat_interleave(samples, 0) for name, value in self.constants.items()}
        x, y = (part.repeat_interleave(samples, 0) for part in (batch.x, batch.y))
        losses, penalty = vmap(self._run, randomness="different")(values, x, y)
        total: Tensor = batch.mean(losses.unflatten(0, (count, samples))) + penalty.view(count, samples)
        return total

    def gradients(self, theta: Tensor, batch: Batch, curvature: str | None = None) -> Gradients:
        """Losses, their gradients at ``theta``, and a curvature there that the rule cannot compute itself.

        Args:
            theta: Parameters, ``(k, S, numel)``.
            batch: Minibatches of the first ``k`` members.
            curvature: ``"exact"`` is the diagonal of the loss's Hessian. ``"empirical_fisher"`` is the mean over the
                minibatch of the squared gradients of single data points, each of :meth:`losses` at that data point
                alone. It is computed at the perturbed coordinates only, since for parameters of a likelihood the
                library's optimisers have no such squares. With any other name there is none.
        """
        if self._closed is not None and self._closed.handles(batch, curvature):
            return self._closed.gradients(theta.detach(), self.constants, batch, curvature)
        if curvature == "empirical_fisher":
            return with_squares(
                lambda rows, each, theta: self.select(rows).losses(theta, each), theta, batch, self.perturbed
            )
        return by_autograd(lambda theta: self.losses(theta, batch), theta, hessian=curvature == "exact")

    def outputs(self, weights: Tensor, member: int, x: Tensor) -> Tensor:
        """Outputs ``(S, N, ...)`` of a member at ``S`` rows of weights, for as many inputs at a time as fit a cache."""
        bytes_each = 2 * weights.element_size() * len(weights) * self.activations
        rows = torch.split(x, max(1, working_set(x.device, CACHE) // bytes_each))
        values = self.layout.split(weights)
        if self._closed is not None and x.ndim == 2:
            return torch.cat([self._closed.outputs(values, part) for part in rows], dim=1)
        constants = {name: value[member] for name, value in self.constants.items()}
        run = vmap(lambda values, part: self._run({**values, **constants}, part), randomness="different")
        copies = (part.expand(len(weights), *part.shape).clone() for part in rows)  # a network may write to its inputs
        return torch.cat([run(values, part) for part in copies], dim=1)

    @torch.no_grad()
    def check(self, theta: Tensor, data: Sequence[Pair], name: str) -> None:
        """Check every member that has its own data on some data points.

        Args:
            theta: Parameters, ``(P, numel)``.
            data: Pair ``(x, y)`` of every member.
            name: Name of the data in messages.

        Raises:
            ValueError: The targets do not fit the outputs, losses have a wrong shape, or a network changes its buffers.
            TypeError: A network under a likelihood does not return a tensor.
        """
        self.train(False)  # dropout must not draw
        for member in sorted(set(data_owners(data))):
            values = self.layout.split(theta[member])
            values |= {key: value[member] for key, value in self.constants.items()}
            self._check_member(values, *data[member], f"{name} of member {member}")
        self.activations = max(1, self._activations(data[0][0][:1].clone()))

    def _activations(self, x: Tensor) -> int:
        counted: list[int] = []
        before = {name: buffer.clone() for name, buffer in self.template.model.named_buffers()}

        def count(module: nn.Module, inputs: object, output: object) -> None:
            counted.append(output.numel() if isinstance(output, Tensor) else 0)

        layers = [m for m in self.template.model.modules() if next(m.children(), None) is None]
        hooks = [layer.register_forward_hook(count) for layer in layers]
        try:
            self.template.model(x)
        finally:
            for hook in hooks:
                hook.remove()
        for name, buffer in self.template.model.named_buffers():
            if not buffer.equal(before[name]):
                raise ValueError(f"models must not change their buffers in a forward pass, got a new {name!r}")
        return sum(counted)

    def _check_member(self, values: Tensors, x: Tensor, y: Tensor, where: str) -> None:
        likelihood = self.template.likelihood
        if isinstance(likelihood, Objective):
            x, y = x[:2].clone(), y[:2]  # for one data point, a mean would look like a loss
            losses, penalty = self._run(values, x, y)
            if losses.shape != (len(x),):
                raise ValueError(
                    f"losses of the objective must be of shape {(len(x),)} for {len(x)} data points, got "
                    f"{tuple(losses.shape)} for {where}"
                )
            if penalty.ndim:
                raise ValueError(f"penalty of the objective must be one number, got shape {tuple(penalty.shape)}")
            return
        output = self._run(values, x[:1].clone())
        if not isinstance(output, Tensor):
            raise TypeError(f"models must return a tensor, got {type(output).__name__}")
        try:
            likelihood.log_prob(output.expand(len(y), *output.shape[1:]), y)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def _run(self, values: Tensors, *inputs: Tensor) -> Any:
        # As call_with does it, with places that are the same for all calls.
        placed = {place: values[name] for place, name in self._places.items()}
        return functional_call(self.template, placed, inputs, tie_weights=False)


class _PaddedEmbedding(nn.Embedding):
    """An embedding whose padding row gets no gradient in any member; with PyTorch's own, that of the first alone has
    none under ``vmap``.
    """

    def forward(self, input: Tensor) -> Tensor:
        assert self.padding_idx is not None
        found = functional.embedding(input, self.weight, scale_grad_by_freq=self.scale_grad_by_freq)
        return found.detach().where(input.eq(self.padding_idx).unsqueeze(-1), found)


def prepare_for_vmap(module: nn.Module) -> None:
    """Replace, in a template, layers that ``vmap`` would compute wrongly."""
    for layer in module.modules():
        if type(layer) is nn.Embedding and layer.padding_idx is not None:
            layer.__class__ = _PaddedEmbedding


def _public(name: str) -> str:
    """The name of a member's tensor for users: that in its network, or with the prefix ``likelihood``."""
    return name.removeprefix("model.")


def _check_alike(rule: str, modules: Sequence[nn.Module]) -> None:
    expected = signature(modules[0])
    for position, module in enumerate(modules):
        if signature(module) != expected:
            raise ValueError(f"{rule}, got another one at position {position}: {module!r}")


def _check_loss(criterion: Likelihood | Objective) -> None:
    """Raise ``ValueError`` if a likelihood has a loss of its own, which would not be used."""
    if isinstance(criterion, Objective):
        return
    for name in ("forward", "nll", "counted"):
        if not getattr(type(criterion), name).__module__.startswith("bayesadam."):
            raise ValueError(
                f"likelihood must not define {name} where many networks are trained at once, whose loss is the mean of "
                f"-log_density (a population.Objective has a loss of its own), got {type(criterion).__name__}"
            )


def _check_network(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if has_own_forward(module):
            raise ValueError(
                "models must have the forward of their class, got one that was set on the module, with which a copy "
                f"would compute as the original: {name!r}"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise ValueError(
                "models must not have batch normalisation in training mode, whose statistics mix the examples "
                f"(use LayerNorm or GroupNorm), got {name!r}"
            )
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            raise ValueError(
                f"models must not have recurrent layers, which vmap cannot map over (use train_ensemble), got {name!r}"
            )
        if isinstance(module, nn.Embedding):
            plain = {"max_norm": None, "sparse": False}
            if type(module) not in (nn.Embedding, _PaddedEmbedding):
                plain["padding_idx"] = None
            for option, value in plain.items():
                given = getattr(module, option)
                if given != value:
                    raise ValueError(
                        f"{option} of the embedding {name!r} ({type(module).__name__}) must be {value} in a "
                        f"population, got {given!r}"
                    )
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if not dtypes:
        raise ValueError(f"models must have trainable parameters, got none in {model!r}")
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise ValueError(f"models must have parameters of one dtype, float32 or float64, got {names}")
