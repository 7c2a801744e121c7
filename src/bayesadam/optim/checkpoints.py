"""Saving, loading and copying an optimiser: foreign state dicts are refused before anything changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesadam.curvature.names import with_current_names
from bayesadam.engine.engine import Engine
from bayesadam.engine.gradients import Gradients
from bayesadam.engine.ranks import LocalSource
from bayesadam.engine.rule import BATCH_SIZE, LEARNING, Rule, options_of
from bayesadam.engine.run import Runner
from bayesadam.engine.sources import CurvatureSource
from bayesadam.engine.store import COUNTERS, Store
from bayesadam.engine.weights import MEAN, Weights
from bayesadam.optim import attachment
from bayesadam.optim.newton import CLIP_RADIUS

EARLIER = {
    "compile": False,
    "maximize": False,
    "perturb": True,
    "temperature": 1.0,
    "nonfinite": "raise",
    "antithetic": False,
    "rank_samples": False,
    "low_memory": False,
    **{option.name: option.default for option in (*LEARNING, BATCH_SIZE, CLIP_RADIUS)},
}
"""What was in force when files were written that do not say it, whatever the defaults are today."""
_OPTIONAL = {option.name for option in (*LEARNING, BATCH_SIZE, CLIP_RADIUS)}


class Checkpointed(Optimizer):
    """An optimiser on an engine, as far as it is saved, loaded, copied and tied to a model's state dicts."""

    rule: ClassVar[Rule]
    has_prior: ClassVar[bool] = True
    may_start_wider: ClassVar[bool] = False  # than the prior: where the widths are trained like the means
    _engine: Engine
    _attached: bool
    _source: CurvatureSource | None = None

    def _reset(self, attached: bool = False) -> None:
        """A fresh engine, which knows nothing of an unfinished step."""
        self._attached = attached
        self._engine = self._make_engine()
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

    def attach(self, model: nn.Module) -> None:
        """From now on ``model.state_dict()`` always gives the mean, and the parameters' names are known.

        So do the state dicts of its parts, of what it wraps (``ddp.module``) and of what wraps it. Loading a state dict
        into any of them then sets the mean, and rebuilds the sample if the weights hold one.

        Raises:
            ValueError: A perturbed parameter of this optimiser that is not the model's; nothing is attached.
        """
        names = attachment.names_of(self._engine.store, model)
        for group in self.param_groups:
            if names.keys() >= set(group["params"]):
                group["param_names"] = [names[p] for p in group["params"]]
        attachment.add_hooks(self, model)
        self._attached = True

    def holds_sample(self, parameter: Tensor) -> bool:
        """Whether a parameter holds a posterior sample at this moment."""
        return self._engine.weights.holds_sample(parameter)

    def mean_of(self, parameter: Tensor) -> Tensor:
        """The mean of a parameter that has a state, whatever the weights hold at this moment."""
        return self._engine.weights.mean_of(parameter)

    def take_loaded_weights(self, module: nn.Module) -> None:
        """Called when a part of an attached model has loaded a state dict: what it loaded is the mean."""
        engine, among = self._engine, list(module.parameters())
        engine.weights.reconcile(engine.gradients.collected, allow_mean=True, adopt=True, among=among)

    def state_dict(self) -> dict[str, Any]:
        """As every optimiser's; it holds the mean whatever the weights hold.

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
        """Resume bit-identically, in whatever order model and optimiser are loaded.

        What is checked and taken is what hooks (``register_load_state_dict_pre_hook``) make of the state dict. If
        anything fails or is interrupted, groups, state and weights are put back as they were.

        Raises:
            ValueError: A state dict of another optimiser or of other parameters; nothing has changed.
            RuntimeError: Called inside a sampling block.
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
            self._engine.store.set_all("low_memory", low_memory)  # a matter of this machine, and not of the run
            take_tensors(self._engine.store, seen)
            self._engine.store.check_loaded()
            self._engine.weights.rebuild()
            self._engine.start_source()
            found = self.param_groups[0].get("total_steps")
            if planned is not None and found != planned:
                attachment.warn_of_other_plan(planned, found)
        except BaseException:
            if seen:  # else nothing has changed
                vars(self).update(before)
                put_back()
                self._engine.start_source()
            raise
        finally:
            if handle is not None:
                handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        """Also which parameters hold a sample, which a parameter that was frozen meanwhile does not tell."""
        found = {**super().__getstate__(), "_written": self._engine.weights.written}
        means = self._engine.weights.unkept_means()
        if means:
            states = {p: {**state, "mean": means[p]} if p in means else state for p, state in self.state.items()}
            found["state"] = defaultdict(dict, states)
        return found

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild what a copy or a pickle does not carry."""
        written = state.get("_written")
        super().__setstate__({name: value for name, value in state.items() if name != "_written"})
        for group in self.param_groups:
            known = {*self.defaults, *(option.name for option in options_of(self.rule))}
            for name, value in {**EARLIER, "method": type(self).__name__}.items():
                if name in _OPTIONAL and name not in known:
                    continue
                group.setdefault(name, value if self.has_prior or name != "temperature" else 0.0)
            group.update(with_current_names(group))
        self.defaults = with_current_names(self.defaults)
        self._reset(attached=vars(self).get("_attached", False))
        self._engine.weights.resume(written)


def check_state_dict(store: Store, defaults: Mapping[str, Any], state_dict: Mapping[str, Any]) -> None:
    """See that a state dict is of an optimiser of this kind over parameters like these.

    Raises:
        ValueError: It is of another one.
    """
    method = defaults["method"]
    for group in state_dict["param_groups"]:
        group = {"method": method, "rank_samples": False, **with_current_names(group)}  # some do not say
        for name in ("method", "hessian", "covariance", "rank_samples"):
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
    """Copy the saved tensors: torch casts them to the parameter's dtype, and shares them with the state dict."""
    for identity, parameter in pairs(store, state_dict):
        for name, value in state_dict["state"].get(identity, {}).items():
            if isinstance(value, Tensor) and name not in COUNTERS:
                store.owner.state[parameter][name] = value.detach().to(parameter.device, copy=True)


def pairs(store: Store, state_dict: Mapping[str, Any]) -> list[tuple[Any, Tensor]]:
    """What the state dict calls each parameter (a number or a name), and the parameter."""
    saved = [identity for group in state_dict["param_groups"] for identity in group["params"]]
    own = [parameter for group in store.owner.param_groups for parameter in group["params"]]
    return list(zip(saved, own, strict=True))
