"""The perturbed optimiser: the three ways to train, the posterior, checkpoints and copies, once for all methods.

A subclass is a rule (:mod:`bayesadam.optim.rule`) and its argument checks. Everything that must survive a copy or a
checkpoint is in ``param_groups`` or ``state``: the hyper-parameters, the number of the next noise draw, whether the
weights hold the mean or a sample, and the mean itself. What belongs to one unfinished step is transient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesadam.curvature.names import current_name
from bayesadam.optim import attachment, compiled
from bayesadam.optim.blocks import local
from bayesadam.optim.checkpoints import check_state_dict, take_tensors
from bayesadam.optim.checks import check_common, check_prior, plain
from bayesadam.optim.continuation import start_from
from bayesadam.optim.gradients import Gradients
from bayesadam.optim.rule import Rule
from bayesadam.optim.sampler import BLOCK, MEAN, TRAIN, Sampler
from bayesadam.optim.sources import CurvatureSource
from bayesadam.optim.state import follow, full, hyper, new_state, walk
from bayesadam.posterior import DiagonalGaussian


class PerturbedOptimizer(Optimizer):
    """Optimises the mean and the precision of a Gaussian posterior over the weights.

    The loss that is backpropagated is the *mean* negative log-likelihood over the minibatch; the prior enters through
    the rule, never through the loss. There are three ways to train, with the same result for the same seed::

        for _ in range(mc_samples):                       # 1. explicit blocks
            with opt.sampled_params():                    #    inside, the weights are one posterior sample
                loss_fn(model(x), y).backward()
        opt.step()

        opt.step(closure)                                 # 2. the closure is called once per sample

        opt.train()                                       # 3. drop-in: the weights hold a sample while training,
        ...                                               #    and any training loop runs unchanged
        opt.eval()                                        #    the weights hold the mean again

    All ranks of a data-parallel job draw the same noise, and a sharded parameter draws its slice of the full tensor's,
    so gradients are averaged at one and the same sample.

    Args:
        params: Parameters, named parameters, or groups of either. A group may set any of the hyper-parameters below,
            and ``perturb=False`` for parameters that are trained without noise (norm layers, a learned noise level):
            those keep the prior of their group and have posterior variance 0.
        lr: Learning rate, a number or a 1-element tensor.
        num_data: Number of training examples ``N``, or a chosen effective number.
        betas: Decay rates of the gradient's and of the curvature's running averages, in [0, 1).
        prior_precision: Of the prior ``N(0, 1 / prior_precision)``; default 1.
        prior: Instead of ``prior_precision``: a posterior to continue from (needs named parameters; the mean starts at
            the prior's), or a number, which is the same as ``prior_precision``.
        initial_precision: Posterior precision at the start, at least ``prior_precision``; default
            ``max(num_data, prior_precision)``. Started at the prior an ordinary network hardly trains.
        temperature: Multiplies the KL divergence in the objective, in [0, 1]: 1 is variational inference, 0
            variational optimisation (Khan et al. 2018, eq. 22).
        mc_samples: Posterior samples per step. The same in all groups.
        antithetic: Draw samples in pairs ``+eps, -eps``; ``mc_samples`` must be even.
        seed: Of the noise; it depends on nothing else but the step, the sample and the position of the parameter.
        maximize: The loss is to be maximised (a mean log-likelihood).
        nonfinite: ``"raise"`` a ``FloatingPointError`` that names the parameter on a gradient that is not finite, and
            change nothing; or ``"skip"`` the step and count it in the groups' ``skipped_steps``.
        compile: Sample and update by compiled kernels: several times faster on large parameters, the same up to
            rounding. The first steps take some seconds more, and it needs the compiler that ``torch.compile`` needs.
        extra: Further hyper-parameters of the subclass.

    Raises:
        ValueError: A hyper-parameter out of its range, both ``prior`` and ``prior_precision``, a complex parameter.
    """

    rule: ClassVar[Rule]
    has_prior: ClassVar[bool] = True
    _shared: ClassVar[tuple[str, ...]] = ("mc_samples", "antithetic", "seed", "nonfinite", "compile")
    _step_supports_amp_scaling = True
    grad_scale: Tensor | None
    found_inf: Tensor | None
    _open: bool
    _sampler: Sampler
    _gradients: Gradients
    _attached: bool
    _source: CurvatureSource | None = None

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        num_data: float,
        betas: tuple[float, float] = (0.9, 0.999),
        prior_precision: float | None = None,
        prior: float | DiagonalGaussian | None = None,
        initial_precision: float | None = None,
        temperature: float = 1.0,
        mc_samples: int = 1,
        antithetic: bool = False,
        seed: int = 0,
        maximize: bool = False,
        nonfinite: str = "raise",
        compile: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if prior is not None and prior_precision is not None:
            raise ValueError(
                f"prior must not be given together with prior_precision, got {prior!r} and {prior_precision!r}"
            )
        prior = plain("prior", prior)
        if isinstance(prior, int | float):
            prior, prior_precision = None, prior
        if not isinstance(prior, DiagonalGaussian | None):
            raise ValueError(f"prior must be a number or a DiagonalGaussian (a marginal() is one), got {prior!r}")
        defaults = {
            "lr": lr,
            "betas": betas,
            "num_data": num_data,
            "initial_precision": initial_precision,
            "temperature": temperature,
            "mc_samples": mc_samples,
            "antithetic": antithetic,
            "seed": seed,
            "perturb": True,
            "maximize": maximize,
            "nonfinite": nonfinite,
            "compile": compile,
            "noise_step": 0,
            "skipped_steps": 0,
            "weights": MEAN,
            "method": type(self).__name__,
            **(extra or {}),
        }
        if self.has_prior:
            defaults["prior_precision"] = 1.0 if prior_precision is None else prior_precision
        self.defaults = {name: plain(name, value) for name, value in defaults.items()}  # subclasses look there
        self._reset()
        super().__init__(params, self.defaults)
        if prior is not None:
            start_from(self, prior)

    def check_group(self, group: dict[str, Any]) -> None:
        """Check a new group's hyper-parameters; a subclass adds its own."""
        check_common(group)
        if self.has_prior:
            check_prior(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, at any time but inside a block; they get the noise indices that follow the last ones.

        Raises:
            ValueError: A hyper-parameter out of range, one that must be the same in all groups and is not, or a
                complex parameter.
            RuntimeError: Called inside a sampling block.
        """
        if self._open:
            raise RuntimeError("add_param_group must be called outside sampled_params(), got a call inside")
        param_group = {name: plain(name, v) if name in self.defaults else v for name, v in param_group.items()}
        group = {**self.defaults, **param_group}
        self.check_group(group)
        for name in self._shared:
            if self.param_groups and group[name] != self.param_groups[0][name]:
                raise ValueError(f"{name} must be the same in all groups, got {group[name]!r}")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for position, parameter in enumerate(group["params"]):
                if parameter.is_complex():
                    raise ValueError(f"parameter {position} of the group must be real, got dtype {parameter.dtype}")
        except ValueError:
            self.param_groups.pop()
            raise
        group["noise_index"] = sum(len(g["params"]) for g in self.param_groups[:-1])
        if len(self.param_groups) > 1:
            first = self.param_groups[0]
            group["noise_step"], group["skipped_steps"] = first["noise_step"], first["skipped_steps"]
            if first["weights"] == TRAIN:
                self._sampler.perturb(0, TRAIN)
            self.set_all("weights", first["weights"])

    # Sampling

    @contextmanager
    def sampled_params(self) -> Iterator[None]:
        """Inside, the weights are the next posterior sample; outside they are the mean, whatever happens inside.

        Gradients from before are hidden inside; after the block ``p.grad`` is the mean gradient over this step's
        samples so far. An exception inside leaves no trace: the sample does not count.

        Raises:
            RuntimeError: A block inside a block, more blocks than ``mc_samples`` before a step, or a block while the
                weights already hold a sample (after :meth:`train`). At its end: a loss that was backwarded though the
                method takes second derivatives.
        """
        count = self.param_groups[0]["mc_samples"]
        if self._open:
            raise RuntimeError("sampled_params() must not be nested, got a block inside a block")
        if self._sampler.weights == TRAIN:
            raise RuntimeError(
                "sampled_params() must not be used after train(), which has drawn a sample: call eval() first"
            )
        if self._gradients.collected == count:
            raise RuntimeError(
                f"exactly mc_samples={count} blocks must be run before step(), got one more "
                "(backward several times inside one block to accumulate gradients)"
            )
        before = self._gradients.hide()
        self._open, completed, valid = True, False, True
        try:
            self._sampler.perturb(self._gradients.collected, BLOCK)
            if self._source is not None:
                self._source.start()
            yield
            if self._source is not None:
                self._source.check_gradients()
            valid = False  # an interruption while the means are half-updated voids all samples of this step
            self._gradients.collect(before)
            completed = valid = True
        finally:
            self._sampler.restore()
            self._open = False
            if self._source is not None:
                self._source.stop()
            if not valid:
                self._gradients.discard()
            if not completed:
                for parameter, grad in before:
                    parameter.grad = grad

    def train(self, mode: bool = True) -> None:
        """Drop-in training: from now on the weights hold a posterior sample, a new one after every step.

        Calling it again changes nothing, but after a checkpoint was loaded it rebuilds the sample if need be.

        Raises:
            RuntimeError: ``mc_samples`` is not 1; called inside a block or between a block and its step; or the
                weights were changed by others while they held a sample.
        """
        if not mode:
            self.eval()
            return
        if self.param_groups[0]["mc_samples"] != 1:
            raise RuntimeError(f"mc_samples must be 1 to use train(), got {self.param_groups[0]['mc_samples']!r}")
        if self._open or self._gradients.collected:
            raise RuntimeError("train() must be called before sampled_params() or after its step(), got a call between")
        if self._sampler.weights == TRAIN:
            self._sampler.reconcile(0, allow_mean=True)
            if self._source is not None and not self._source.started:
                self._start_source()
            return
        self._sampler.perturb(0, TRAIN)
        if self._source is not None:  # what it has collected goes with gradients that have not been stepped with
            pending = any(parameter.grad is not None for _, _, parameter in self.parameters())
            begin = self._source.resume if pending else self._source.start
            try:
                begin(self._gradients.after_backward)
            except BaseException:
                self._sampler.restore()
                raise

    def eval(self) -> None:
        """End of drop-in training: the weights hold the mean. Calling it again changes nothing.

        Raises:
            RuntimeError: Called inside a sampling block.

        Warns:
            UserWarning: Weights were changed by others while they held a sample: what they are now is the mean.
        """
        if self._open:
            raise RuntimeError("eval() must be called outside sampled_params(), got a call inside")
        if self._sampler.weights != MEAN:
            others = self._sampler.release()
            if self._source is not None:
                self._source.pause()
            if others:
                attachment.warn_of_other_values(self.name_of(others[0]))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients. Outside a block this also discards the samples collected for the next step."""
        super().zero_grad(set_to_none)
        if self._source is not None:
            self._source.discard()
        if not self._open:
            collected = self._gradients.collected
            self._gradients.discard()
            if collected:
                self.set_all("noise_step", self.param_groups[0]["noise_step"] + 1)

    def backward(self, loss: Tensor) -> None:
        """Inside a block: ``loss.backward()``, and whatever else the method wants to know of a mean loss.

        Methods that take second derivatives give gradients to this optimiser's parameters only.

        Methods that take second derivatives need it in place of ``loss.backward()``; for all others it is the same,
        and where the examples' gradients are squared it checks the loss.

        Raises:
            RuntimeError: Called while the weights hold the mean; or the loss was backwarded before, and must not have
                been.
            ValueError: The loss is a sum where a mean was announced, or the reverse.
        """
        if self._sampler.weights == MEAN:
            raise RuntimeError("backward() must be called inside sampled_params() or after train(), got a call outside")
        with torch.enable_grad():
            if self._source is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self._source.backward(loss)

    # Stepping

    @torch.inference_mode(False)
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the posterior from the gradients at its samples.

        Args:
            closure: Clears the gradients, computes the mean loss, calls ``backward`` and returns the loss. It is
                called once for each of ``mc_samples`` samples (once at the current sample after :meth:`train`). For
                methods that take second derivatives it does not call ``backward``.

        Returns:
            The closure's loss, for several samples their mean; ``None`` without a closure.

        Raises:
            RuntimeError: No sample was drawn, or not exactly ``mc_samples``; a sparse gradient; a gradient without the
                curvature that the method needs.
            FloatingPointError: A gradient or a curvature that is not finite, or a precision that would not stay
                positive, with ``nonfinite="raise"``; nothing has changed. Samples from blocks are discarded.
            ValueError: The closure's loss is a sum where a mean was announced, or the reverse.
            TypeError: The closure returned no loss to a method that differentiates it.
        """
        if self._open:
            raise RuntimeError("step() must be called outside sampled_params(), got a call inside")
        loss = None if closure is None else self._run(closure)
        if self._sampler.weights != TRAIN and self._gradients.collected == 0 and self._creates_state_only():
            return loss
        count = self.param_groups[0]["mc_samples"]
        if self._sampler.weights != TRAIN and self._gradients.collected != count:
            raise RuntimeError(
                f"step() must follow exactly mc_samples={count} sampling blocks, got {self._gradients.collected}: use "
                "`with opt.sampled_params():`, pass a closure, or call train() first (the weights hold the mean)"
            )
        self._sampler.reconcile(0)
        if self._sampler.weights == TRAIN:
            self._gradients.collect_drop_in()
        try:
            ready = self._gradients.prepare()
        except BaseException:
            if self._sampler.weights != TRAIN:
                self._gradients.discard()
            raise
        if ready:
            self._gradients.step()
        else:
            self.set_all("skipped_steps", self.param_groups[0]["skipped_steps"] + 1)
        self._gradients.discard()
        self.set_all("noise_step", self.param_groups[0]["noise_step"] + 1)
        if self._sampler.weights == TRAIN:
            self._sampler.perturb(0, TRAIN)
            if self._source is not None:
                self._source.discard()
        torch.clear_autocast_cache()
        return loss

    # The posterior

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> DiagonalGaussian:
        """The posterior as it stands: copies of means and variances, float32 or wider, of the full tensors.

        Args:
            model: Gives the names, if neither ``named_parameters()`` nor :meth:`attach` did. Parameters that are
                not the model's are left out; only ``perturb=False`` groups (a learned noise level) may have such.

        Raises:
            RuntimeError: The names are not known.
            ValueError: A perturbed parameter that is not the model's.
        """
        mean, variance = {}, {}
        for name, group, _, parameter, state in self._covered(model):
            mean[name] = full(self._center(group, parameter, state))
            spread = torch.zeros_like(state["mean"])
            if group["perturb"]:
                here = local(spread)
                for block, views in walk(parameter, state, here):
                    block.of(here).copy_(self.rule.precision(views, hyper(group, state, views)).reciprocal_())
            variance[name] = full(spread)
        return DiagonalGaussian(mean, variance, self._hyperparameters())

    def _covered(
        self, model: nn.Module | None
    ) -> Iterator[tuple[str, dict[str, Any], int, nn.Parameter, dict[str, Any]]]:
        """What a posterior covers: name, group, noise index, parameter and state of every parameter."""
        names = self.names() if model is None else attachment.names_of(self, model)
        for group, index, parameter in self.parameters():
            if not parameter.requires_grad and parameter not in self.state:
                continue
            if parameter not in names:
                if not group["perturb"]:
                    continue
                raise RuntimeError(
                    "posterior() must know the parameters' names: give it the model, construct the optimiser from "
                    "model.named_parameters(), or call attach(model)"
                )
            yield (
                names[parameter],
                group,
                index,
                parameter,
                self.state.get(parameter) or self.new_state(parameter, group),
            )

    def _center(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Any]) -> Tensor:
        """A copy of the mean as it stands, which may be in the weights."""
        center: Tensor = state["mean"].clone()
        if self._sampler.weights == MEAN or not group["perturb"]:
            follow(local(center), local(parameter))
        return center

    def _hyperparameters(self) -> dict[str, Any]:
        first = self.param_groups[0]
        reported = ("num_data", "prior_precision", "temperature", "seed")
        return {"method": type(self).__name__, **{k: first[k] for k in reported if k in first}}

    def attach(self, model: nn.Module) -> None:
        """From now on ``model.state_dict()`` always gives the mean, and the parameters' names are known.

        So do the state dicts of its parts, of what it wraps (``ddp.module``) and of what wraps it. Loading a state dict
        into any of them then sets the mean, and rebuilds the sample if the weights hold one.

        Raises:
            ValueError: A perturbed parameter of this optimiser that is not the model's; nothing is attached.
        """
        names = attachment.names_of(self, model)
        for group in self.param_groups:
            if names.keys() >= set(group["params"]):
                group["param_names"] = [names[p] for p in group["params"]]
        attachment.add_hooks(self, model)
        self._attached = True

    def holds_sample(self, parameter: Tensor) -> bool:
        """Whether a parameter holds a posterior sample at this moment, and ``state[parameter]["mean"]`` its mean."""
        return self._sampler.holds_sample(parameter)

    def take_loaded_weights(self, module: nn.Module) -> None:
        """Called when a part of an attached model has loaded a state dict: what it loaded is the mean."""
        among = module.parameters()
        self._sampler.reconcile(self._gradients.collected, allow_mean=True, adopt=True, among=among)

    # Checkpoints and copies

    def state_dict(self) -> dict[str, Any]:
        """As every optimiser's; it holds the mean whatever the weights hold.

        Warns:
            UserWarning: The weights hold a sample and no model is attached, so ``model.state_dict()`` at this moment
                would save the sample.
        """
        if self._sampler.weights != MEAN and not self._attached:
            attachment.warn_of_sample()
        return super().state_dict()

    @torch.inference_mode(False)
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume bit-identically, in whatever order model and optimiser are loaded.

        Raises:
            ValueError: A state dict of another optimiser or of other parameters; nothing has changed.
            RuntimeError: Called inside a sampling block.
        """
        if self._open:
            raise RuntimeError("load_state_dict() must be called outside sampled_params(), got a call inside")
        check_state_dict(self, state_dict)
        if self._sampler.weights != MEAN:
            self._sampler.release()  # a model that was loaded before stays as it is
        self._reset(attached=self._attached)
        super().load_state_dict(state_dict)
        take_tensors(self, state_dict)
        self._sampler.rebuild()
        self._start_source()

    def __getstate__(self) -> dict[str, Any]:
        """Also which parameters hold a sample, which a parameter that was frozen meanwhile does not tell."""
        return {**super().__getstate__(), "_written": dict(self._sampler.written)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild what a copy or a pickle does not carry."""
        written = state.get("_written")
        super().__setstate__({name: value for name, value in state.items() if name != "_written"})
        for group in self.param_groups:
            group.setdefault("compile", False)  # not in checkpoints of version 0.1
            group.setdefault("method", type(self).__name__)  # likewise
        for told in (self.defaults, *self.param_groups):
            if "hessian" in told:
                told["hessian"] = current_name(told["hessian"])
        self._reset(attached=vars(self).get("_attached", False))
        self._sampler.resume(written)

    # Internals, shared with the sampler and the gradients

    def _reset(self, attached: bool = False) -> None:
        self._open = False
        self._sampler = Sampler(self)
        self._gradients = Gradients(self, self._sampler)
        self._attached = attached
        if self._source is not None:
            self._source.stop()
            if hasattr(self, "param_groups"):
                self._start_source()

    def _start_source(self) -> None:
        """In drop-in training curvature is collected at any time."""
        if self._source is not None and self.param_groups[0]["weights"] == TRAIN:
            self._source.start(self._gradients.after_backward)

    @property
    def source(self) -> CurvatureSource | None:
        """Where curvature comes from that the rule does not compute itself."""
        return self._source

    @property
    def keeps_curvature(self) -> bool:
        """Whether curvature is collected with every sample, rather than computed at the step."""
        return self._source is not None or bool(self.param_groups[0]["mc_samples"] > 1)

    @property
    def compiles(self) -> bool:
        """Whether kernels are compiled where they fit."""
        return bool(self.param_groups[0]["compile"]) and compiled.available()

    @property
    def collected(self) -> int:
        """How many samples of the next step there are."""
        return self._gradients.collected

    def new_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """A parameter's state before its first step."""
        return new_state(self.rule, parameter, group)

    def start_rule(self, parameter: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Set the rule's tensors to what they start with, given the mean and the prior that the state has."""
        state.update(self.rule.init(state["mean"], hyper(group, state, state)))

    def set_all(self, name: str, value: Any) -> None:
        """Set an entry of every group."""
        for group in self.param_groups:
            group[name] = value

    def parameters(self) -> Iterator[tuple[dict[str, Any], int, nn.Parameter]]:
        """Every parameter with its group and its noise index."""
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"], group["noise_index"]):
                yield group, index, parameter

    def trained(self) -> Iterator[tuple[dict[str, Any], int, nn.Parameter]]:
        """Those that have a gradient to step with."""
        for group, index, parameter in self.parameters():
            if parameter.requires_grad and parameter.grad is not None:
                yield group, index, parameter

    def state_of(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """A parameter's state, made at its first use."""
        if parameter not in self.state:
            self.state[parameter] = self.new_state(parameter, group)
        state: dict[str, Any] = self.state[parameter]
        return state

    def name_of(self, parameter: Tensor) -> str:
        """What a message calls a parameter: its name, or its position if names are not known."""
        names = self.names()
        if parameter in names:
            return repr(names[parameter])
        return next(f"number {index}" for _, index, p in self.parameters() if p is parameter)

    def names(self) -> dict[Tensor, str]:
        """Of the parameters in groups that have names."""
        named = (group for group in self.param_groups if "param_names" in group)
        return {p: n for group in named for p, n in zip(group["params"], group["param_names"], strict=True)}

    def _run(self, closure: Callable[[], Any]) -> Any:
        if self._gradients.collected:
            raise RuntimeError(
                f"step(closure) draws its own samples and must not follow blocks, got {self._gradients.collected}"
            )
        if self._sampler.weights == TRAIN:
            with torch.enable_grad():
                loss = closure()
                return loss if self._source is None else self._source.after_closure(loss)
        losses = []
        try:
            for _ in range(self.param_groups[0]["mc_samples"]):
                with self.sampled_params(), torch.enable_grad():
                    loss = closure()
                    losses.append(loss if self._source is None else self._source.after_closure(loss))
        except BaseException:
            self._gradients.discard()
            raise
        if len(losses) == 1 or losses[0] is None:
            return losses[0]
        if isinstance(losses[0], Tensor):
            return torch.stack([loss.detach() for loss in losses]).mean()
        return sum(losses) / len(losses)

    def _creates_state_only(self) -> bool:
        """What distributed checkpoints do to a fresh optimiser: ``step()`` with rate 0 and zero gradients."""
        if any(float(group["lr"]) != 0 for group in self.param_groups) or not self._gradients.are_zero():
            return False
        for group, _, parameter in self.parameters():
            if parameter.requires_grad:
                self.state_of(parameter, group)
        return True
