"""Saving, loading and copying an optimiser; a state dict that does not fit is refused before anything changes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesadam.core.engine import Engine
from bayesadam.core.layout import Layout, fault_in
from bayesadam.core.rule import COUNTERS, Rule
from bayesadam.core.sampling import BLOCK, MEAN, TRAIN, Weights
from bayesadam.core.sources import HessianSource, Source
from bayesadam.curvature import PerExampleSquares
from bayesadam.modules import train_mode
from bayesadam.modules.sharding import local
from bayesadam.modules.wrappers import innermost, names_in
from bayesadam.optim import attach
from bayesadam.optim.groups import SHARED
from bayesadam.optim.priors import Gaussians


class Checkpointed(Optimizer):
    """The part of an optimiser that saves, loads and copies it, and ties it to the state dicts of a model.

    Attributes:
        rule: Rule of the method.
        has_prior: Whether the method has a prior.
        may_start_wider: Whether the posterior may start wider than the prior.
        tracks_start: Whether it is known which share of the posterior's precision is the initial precision.
        cooling: Temperature of the posterior relative to that of the noise in training.
        shared: Entries that must be the same in all groups.
    """

    rule: ClassVar[Rule]
    has_prior: ClassVar[bool] = True
    may_start_wider: ClassVar[bool] = False
    tracks_start: ClassVar[bool] = True
    cooling: ClassVar[float] = 1.0
    shared: ClassVar[tuple[str, ...]] = SHARED
    _engine: Engine
    _model: weakref.ref[nn.Module] | None = None  # the attached one
    _source: PerExampleSquares | None = None  # given by the user
    _prior: Gaussians = {}  # noqa: RUF012 - replaced, never changed
    _loaded: Mapping[str, Any] | None = None  # a state dict, while it is being loaded

    def _reset(self) -> None:
        """Make a new engine; the data of an unfinished step are discarded."""
        weights = Weights(Layout(self, self.rule, self._prior))
        source: Source | None = self._source
        if self.defaults.get("hessian") in ("exact", "hutchinson"):
            source = HessianSource(weights, self.defaults["hessian"])
        if source is not None:
            source.stop()
        self._engine = Engine(weights, source)
        self._take_names()

    def _take_names(self) -> nn.Module | None:
        """Use the parameter names of the attached model; return this model."""
        model = None if self._model is None else self._model()
        if model is not None:
            self._engine.layout.attached_names = names_in(model)
        return model

    def attach(self, model: nn.Module) -> None:
        """Make ``model.state_dict()`` always return the mean, and take the parameters' names from the model.

        The same holds for the state dicts of its submodules, of a module that it wraps (``ddp.module``) and of modules
        that wrap it. Loading a state dict into any of them sets the mean and rebuilds the sample if the weights hold
        one. Copies and pickles of model and optimiser together are attached to each other, too. No number of a training
        changes.

        Raises:
            ValueError: A perturbed parameter of this optimiser does not belong to the model; nothing is attached.

        Warns:
            UserWarning: Another optimiser is attached to the model and perturbs other parameters of it with the same
                ``seed``, and so by the same noise.
        """
        attach.names_of(self._engine.layout, model)
        attach.join(self, model)
        self._model = weakref.ref(model)
        self._take_names()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; after :meth:`attach` its parameters need no names, and get those of the model."""
        model = self._take_names()
        if model is None:
            super().add_param_group(param_group)
            return
        super().add_param_group(attach.named_alike(param_group, self.param_groups, names_in(model)))
        attach.add_hooks(self, model)

    def follow(self, model: nn.Module) -> None:
        """Switch between sample and mean whenever the model is set to training or evaluation mode.

        This is for training loops that call ``model.train()``, ``model.eval()`` and ``optimizer.step()`` and nothing
        else of the optimiser. It calls :meth:`attach`; from then on ``model.train()`` also calls :meth:`train` of this
        optimiser and ``model.eval()`` calls :meth:`eval`, so that evaluation and prediction use the mean. Call
        ``eval()`` of either at the end of the training, and :meth:`unfollow` before an optimiser of another library
        trains the model. Another optimiser of this library that follows the model with some of the same parameters,
        as after a training that was stopped, puts its mean into the weights and no longer follows it.
        The weights first change when the model is next set to training mode.

        Args:
            model: The module that has the parameters. It may be wrapped (``DistributedDataParallel``,
                ``torch.compile``) before or after this call.

        Raises:
            RuntimeError: ``mc_samples`` is not 1.
            ValueError: A perturbed parameter of this optimiser does not belong to the model.
        """
        self._engine.check_drop_in()
        self.attach(model)
        for other in attach.attached(innermost(model)):
            if other is not self and not attach.parameters_of(self).isdisjoint(attach.parameters_of(other)):
                other.unfollow(model)
        train_mode.follow(self, model)

    def unfollow(self, model: nn.Module) -> None:
        """Put the mean into the weights, and end what :meth:`follow` began; state dicts hold the mean as before."""
        self.eval()  # type: ignore[attr-defined]
        train_mode.unfollow(self, model)

    def follow_mode(self, training: bool) -> None:
        """Train or evaluate as a followed model does; inside a sampling block nothing is changed."""
        if self._engine.opened is None:
            self.train(training)  # type: ignore[attr-defined]

    def holds_sample(self, parameter: Tensor) -> bool:
        """Whether a parameter holds a posterior sample at this moment."""
        return self._engine.weights.mean_of(parameter) is not None

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dict, as in ``torch.optim``; it holds the mean whether or not weights hold a sample.

        Warns:
            UserWarning: The weights hold a sample and no model is attached, so ``model.state_dict()`` at this moment
                would save the sample.
        """
        if self._engine.weights.held != MEAN and self._model is None:
            attach.warn_of_sample()
        return super().state_dict()

    @torch.inference_mode(False)
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict; the training then continues bit-identically, whether model or optimiser is loaded first.

        Hooks (``register_load_state_dict_pre_hook``) run first, and their result is checked and loaded.

        Raises:
            ValueError: The state dict is of another optimiser, or of other parameters or the same in another order;
                nothing has changed.
            RuntimeError: The method was called inside a sampling block.
        """
        self._engine.end_block("load_state_dict()")

        def look(_: Optimizer, found: dict[str, Any]) -> None:  # after the user's own hooks, which may change it
            self._check_state_dict(found)
            self._loaded = found
            if self._engine.weights.held != MEAN:
                self._engine.eval()  # a model that was loaded before stays as it is

        handle = self.register_load_state_dict_pre_hook(look)
        try:
            super().load_state_dict(state_dict)  # which calls __setstate__
        finally:
            handle.remove()
            self._loaded = None

    def _take_loaded(self, state_dict: Mapping[str, Any]) -> None:
        """Make a new engine for the groups and the state that torch has loaded."""
        for identity, parameter in self._pairs(state_dict):
            for name, value in state_dict["state"].get(identity, {}).items():
                if isinstance(value, Tensor):  # once more, since torch has cast it to the parameter's dtype
                    device = torch.device("cpu") if name in COUNTERS else parameter.device
                    self.state[parameter][name] = value.detach().to(device, copy=True)
        self._rebuild()

    @torch.no_grad()
    def _rebuild(self, *, copied: bool = False) -> None:
        """Make a new engine for groups and state, and put the sample of ``train()`` into the weights again."""
        self._reset()
        layout, weights = self._engine.layout, self._engine.weights
        held = weights.held
        in_block = held == BLOCK  # the model may be loaded later, with its sample
        if held != MEAN and not (in_block and copied):
            for parameter, state in self.state.items():
                if "mean" in state:
                    local(parameter).copy_(local(state["mean"]))
        layout.set_all("weights", BLOCK if in_block else MEAN)
        if self.state:  # otherwise the parameters may be replaced later, as Accelerate does with FSDP2
            layout.flats()
        if held == TRAIN:
            self._engine.train()
        weights.resume()

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, with the attached model, so that copies of both are attached, too."""
        model = None if self._model is None else self._model()
        others = {"_source": self._source, "_prior": self._prior or None, "_attached": model}
        return {**super().__getstate__(), **{k: v for k, v in others.items() if v is not None}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle and rebuild the engine, which is not part of it; or accept the groups and the
        state of a state dict that is being loaded.
        """
        model = state.pop("_attached", None)
        super().__setstate__(state)
        if self._loaded is not None:
            self._take_loaded(self._loaded)
            return
        self._rebuild(copied=True)
        if model is not None and "_modules" in vars(model):  # not while a model that holds this optimiser is copied
            self.attach(model)

    def _check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Check that a state dict is of the same method, with parameters of the same shapes.

        Raises:
            ValueError: The state dict is of another method or of other parameters.
        """
        for group in state_dict["param_groups"]:
            for name in ("method", "hessian", "rank_samples"):
                if group.get(name) != self.defaults.get(name):
                    raise ValueError(
                        f"{name} of the state_dict must be {self.defaults.get(name)!r}, got {group.get(name)!r}"
                    )
        sizes = [
            [len(group["params"]) for group in groups] for groups in (state_dict["param_groups"], self.param_groups)
        ]
        if sizes[0] != sizes[1]:
            raise ValueError(f"state_dict must have groups of {sizes[1]} parameters, got {sizes[0]}")
        self._check_order(state_dict)
        for identity, parameter in self._pairs(state_dict):
            entries = state_dict["state"].get(identity)
            fault = None if entries is None else fault_in(entries, parameter, self.rule)
            if fault is not None:
                raise ValueError(f"the state of parameter {identity!r} {fault}")

    def _check_order(self, state_dict: Mapping[str, Any]) -> None:
        """Check that no parameter whose name is in the state dict has another position there."""
        both = (state_dict["param_groups"], self.param_groups)
        saved, own = (
            [n for group in groups for n in group.get("param_names", [None] * len(group["params"]))] for groups in both
        )
        known = set(saved) - {None}
        for position, name in enumerate(own):
            if name in known and saved[position] != name:
                raise ValueError(
                    f"state_dict must have parameter {name!r} at position {position}, got {saved[position]!r} there "
                    "(states belong to parameters by their position)"
                )

    def _pairs(self, state_dict: Mapping[str, Any]) -> list[tuple[Any, Tensor]]:
        """Pairs of a parameter's identity in the state dict (a number or a name) and the parameter."""
        saved = [identity for group in state_dict["param_groups"] for identity in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        return list(zip(saved, own, strict=True))
