"""Saving, loading and copying an optimiser; a state dict that does not fit is refused before anything changes."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesadam.engine.engine import Engine
from bayesadam.engine.gradients import Gradients
from bayesadam.engine.ranks import LocalSource
from bayesadam.engine.rule import Rule
from bayesadam.engine.run import Runner
from bayesadam.engine.sources import CurvatureSource
from bayesadam.engine.store import COUNTERS, Store
from bayesadam.engine.weights import MEAN, Weights
from bayesadam.optim import attachment
from bayesadam.optim.batch_size import BatchSize
from bayesadam.optim.continuation import Continuation
from bayesadam.optim.correlated_prior import CORRELATED, CorrelatedPrior
from bayesadam.posterior import modes


class Checkpointed(Optimizer):
    """The part of an optimiser that saves, loads and copies it, and ties it to the state dicts of a model."""

    rule: ClassVar[Rule]
    has_prior: ClassVar[bool] = True
    may_start_wider: ClassVar[bool] = False  # whether the posterior may start wider than the prior
    _engine: Engine
    _attached: bool
    _model: weakref.ref[nn.Module] | None = None  # the attached one; in a copy there is none
    _source: CurvatureSource | None = None
    _counted: BatchSize | None = None
    _prior: CorrelatedPrior | None = None
    _continuation: Continuation | None = None

    def _reset(self, attached: bool = False) -> None:
        """Make a new engine; the data of an unfinished step are discarded."""
        self._attached = attached
        self._engine = self._make_engine()
        if self._continuation is not None:
            self._engine.store.start_prior = self._continuation.start_prior
        if self._source is not None:
            self._source.stop()
        if getattr(self, "param_groups", None):
            self._engine.start_source()

    def _make_engine(self) -> Engine:
        store = Store(self, self.rule)
        weights = Weights(store, Runner())
        source = self._source
        if source is None and self.defaults.get("rank_samples", False):
            source = LocalSource(store, weights, lambda: gradients.collected)
        gradients = Gradients(store, weights, source)
        return Engine(store, weights, gradients, source)

    @abstractmethod
    def train(self, mode: bool = True) -> None:
        """Put a sample into the weights for drop-in training, or the mean."""

    def attach(self, model: nn.Module) -> None:
        """Make ``model.state_dict()`` always return the mean, and take the parameters' names from the model.

        The same holds for the state dicts of its submodules, of a module that it wraps (``ddp.module``) and of modules
        that wrap it. Loading a state dict into any of them sets the mean and rebuilds the sample if the weights hold
        one.

        If ``batch_size`` was not given, it is found from the training passes of the model: the number of rows of its
        first input, added up over the passes of a step and multiplied by the number of processes. (If steps differ, it
        is their harmonic mean so far.) A pass counts from the time when a gradient reaches its outputs until
        :meth:`zero_grad` of this optimiser (not that of the model) clears it. The number stays unknown if the outputs
        do not have one row for each example, as for networks that predict every token of a sequence; give it then. For
        models with batch norm layers, the latest 512 inputs are kept, with which :func:`bayesadam.predict` estimates
        their statistics.

        Raises:
            ValueError: A perturbed parameter of this optimiser does not belong to the model; nothing is attached.

        Warns:
            UserWarning: Another optimiser is attached to the model and perturbs other parameters of it with the same
                ``seed``, and so by the same noise.
        """
        names = attachment.names_of(self._engine.store, model)
        for group in self.param_groups:
            attachment.name_group(group, names)
        attachment.join(self, model)
        attachment.add_hooks(self, model)
        self.watch(model)
        self._attached, self._model = True, weakref.ref(model)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; after :meth:`attach` its parameters need no names, and get those of the model."""
        model = None if self._model is None else self._model()
        if model is None:
            super().add_param_group(param_group)
            return
        earlier = [parameter for group in self.param_groups for parameter in group["params"]]
        bare, names = attachment.split_names(param_group)
        with attachment.names_aside(self.param_groups):
            super().add_param_group(bare)
        if names is not None:
            self.param_groups[-1]["param_names"] = names
        attachment.name_group(self.param_groups[-1], attachment.names_in(model))
        attachment.add_hooks(self, model, earlier)

    def watch(self, model: nn.Module) -> None:
        """Find ``batch_size`` from the training passes of this model, as :meth:`attach` does.

        A later call replaces the model. It is needed only if the training loop does not call the attached model itself,
        but a part of it.
        """
        if self._counted is None:
            self._counted = BatchSize(lambda: self._engine.store)
        self._counted.watch(model)

    def follow(self, model: nn.Module) -> None:
        """Switch between sample and mean whenever the model is set to training or evaluation mode.

        This is for training loops that call ``model.train()``, ``model.eval()`` and ``optimizer.step()`` and nothing
        else of the optimiser. It calls :meth:`attach`; from then on ``model.train()`` also calls :meth:`train` of this
        optimiser and ``model.eval()`` calls :meth:`eval`, so that evaluation and prediction use the mean. Call
        ``eval()`` of either at the end of the training. The weights first change when the model is next set to
        training mode.

        Args:
            model: The module that has the parameters. It may be wrapped (``DistributedDataParallel``,
                ``torch.compile``) before or after this call.

        Raises:
            RuntimeError: ``mc_samples`` is not 1.
            ValueError: A perturbed parameter of this optimiser does not belong to the model.
        """
        self._engine.check_drop_in()
        self.attach(model)
        modes.follow(self, model)

    def follow_mode(self, training: bool) -> None:
        """Train or evaluate as a followed model does; inside a sampling block nothing is changed."""
        if not self._engine.open:
            self.train(training)

    def holds_sample(self, parameter: Tensor) -> bool:
        """Whether a parameter holds a posterior sample at this moment."""
        return self._engine.weights.holds_sample(parameter)

    def mean_of(self, parameter: Tensor) -> Tensor:
        """The mean of a parameter that has a state, whether the weights hold the mean or a sample."""
        return self._engine.weights.mean_of(parameter)

    def take_loaded_weights(self, module: nn.Module) -> None:
        """Take weights that a part of an attached model has loaded from a state dict as the mean."""
        engine, among = self._engine, list(module.parameters())
        engine.weights.reconcile(engine.gradients.collected, allow_mean=True, adopt=True, among=among)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dict, as in ``torch.optim``; it holds the mean whether or not weights hold a sample.

        Warns:
            UserWarning: The weights hold a sample and no model is attached, so ``model.state_dict()`` at this moment
                would save the sample.
        """
        if self._engine.weights.held != MEAN and not self._attached:
            attachment.warn_of_sample()
        found = super().state_dict()
        means = self._engine.weights.unkept_means()
        for identity, parameter in pairs(self._engine.store, found):
            if parameter in means:
                found["state"][identity] = {**found["state"][identity], "mean": means[parameter]}
        return found

    @torch.inference_mode(False)
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict; the training then continues bit-identically, whether model or optimiser is loaded first.

        Hooks (``register_load_state_dict_pre_hook``) run first, and their result is checked and loaded. If loading
        fails or is interrupted, groups, state and weights are restored.

        Raises:
            ValueError: The state dict is of another optimiser or of other parameters; nothing has changed.
            RuntimeError: The method was called inside a sampling block.

        Warns:
            UserWarning: The state dict has another ``total_steps`` than this optimiser, and replaces it.
        """
        self._engine.refuse_inside("load_state_dict()")
        seen: dict[str, Any] = {}

        def look(_: Optimizer, found: dict[str, Any]) -> None:  # after the user's own hooks, which may change it
            check_state_dict(self._engine.store, self.defaults, found)
            seen.update(found)
            if self._engine.weights.held != MEAN:
                self._engine.weights.release()  # a model that was loaded before stays as it is
            self._reset(attached=self._attached)

        handle = None
        before, put_back = dict(vars(self)), self._engine.weights.kept()
        planned, low_memory = self.param_groups[0].get("total_steps"), self.param_groups[0]["low_memory"]
        try:
            handle = self.register_load_state_dict_pre_hook(look)
            super().load_state_dict(state_dict)
            self._engine.store.set_all("low_memory", low_memory)  # depends on this machine and not on the run
            take_tensors(self._engine.store, seen)
            self._engine.store.check_loaded()
            self._engine.weights.rebuild()
            self._engine.start_source()
            found = self.param_groups[0].get("total_steps")
            if planned is not None and found != planned:
                attachment.warn_of_other_plan(planned, found)
        except BaseException:
            if seen:  # otherwise nothing has changed
                vars(self).update(before)
                put_back()
                self._engine.start_source()
            raise
        finally:
            if handle is not None:
                handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, with a record of the parameters that hold a sample.

        A parameter that was frozen in between does not show whether it holds one.
        """
        found = {**super().__getstate__(), "_written": self._engine.weights.written}
        kept = {"_prior": self._prior, "_continuation": self._continuation}
        found |= {name: value for name, value in kept.items() if value is not None}
        means = self._engine.weights.unkept_means()
        if means:
            states = {p: {**state, "mean": means[p]} if p in means else state for p, state in self.state.items()}
            found["state"] = defaultdict(dict, states)
        return found

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle, and rebuild the engine, which is not part of it."""
        written = state.get("_written")
        super().__setstate__({name: value for name, value in state.items() if name != "_written"})
        self._reset(attached=vars(self).get("_attached", False))
        self._engine.weights.resume(written)


def check_state_dict(store: Store, defaults: Mapping[str, Any], state_dict: Mapping[str, Any]) -> None:
    """Check that a state dict is of the same method, with parameters of the same shapes.

    Raises:
        ValueError: The state dict is of another method or of other parameters.
    """
    for group in state_dict["param_groups"]:
        for name in ("method", "hessian", "covariance", "rank_samples", CORRELATED):
            own = defaults.get(name)
            if group.get(name) != own:
                raise ValueError(f"{name} of the state_dict must be {own!r}, got {group.get(name)!r}")
    sizes = [
        [len(group["params"]) for group in groups] for groups in (state_dict["param_groups"], store.owner.param_groups)
    ]
    if sizes[0] != sizes[1]:
        raise ValueError(f"state_dict must have groups of {sizes[1]} parameters, got {sizes[0]}")
    required = {"mean", *store.rule.state, *COUNTERS}
    for identity, parameter in pairs(store, state_dict):
        entries = state_dict["state"].get(identity)
        if entries is None:
            continue
        missing = required - entries.keys()
        if missing:
            raise ValueError(
                f"the state of parameter {identity!r} must have {sorted(required)}, got none for {sorted(missing)}"
            )
        if entries["mean"].shape != parameter.shape:
            raise ValueError(
                f"the state of parameter {identity!r} must be of shape {tuple(parameter.shape)}, "
                f"got {tuple(entries['mean'].shape)}"
            )


def take_tensors(store: Store, state_dict: Mapping[str, Any]) -> None:
    """Copy the saved tensors once more, since torch casts them to the parameter's dtype and shares their memory."""
    for identity, parameter in pairs(store, state_dict):
        for name, value in state_dict["state"].get(identity, {}).items():
            if isinstance(value, Tensor) and name not in COUNTERS:
                store.owner.state[parameter][name] = value.detach().to(parameter.device, copy=True)


def pairs(store: Store, state_dict: Mapping[str, Any]) -> list[tuple[Any, Tensor]]:
    """Pairs of a parameter's identity in the state dict (a number or a name) and the parameter."""
    saved = [identity for group in state_dict["param_groups"] for identity in group["params"]]
    own = [parameter for group in store.owner.param_groups for parameter in group["params"]]
    return list(zip(saved, own, strict=True))
