"""Putting posterior samples into the weights and the mean back, so that an interruption at any point loses nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.optim import compiled
from bayesadam.optim.blocks import Block, is_sharded, local
from bayesadam.optim.state import follow, hyper, walk

if TYPE_CHECKING:
    from bayesadam.optim.base import PerturbedOptimizer

MEAN, BLOCK, TRAIN = "mean", "block", "train"
"""What the weights hold, as the groups' ``"weights"`` says: the mean, which is then authoritative (the state's follows
it); or a sample, inside a block or after ``train()``, and then the state's mean is authoritative."""

AHEAD = 64
"""Steps for which the noise of small parameters is drawn at once, at most."""


class Sampler:
    """Transient: which parameters hold a sample, how far, and whether others wrote to them since."""

    def __init__(self, optimizer: PerturbedOptimizer) -> None:
        self.optimizer = optimizer
        self.scratch = noise.Scratch()
        self._written: dict[Tensor, int] = {}
        self._versions: dict[Tensor, int] = {}
        self._ahead = noise.Ahead(self.scratch)

    @property
    def weights(self) -> str:
        """``MEAN``, ``BLOCK`` or ``TRAIN``."""
        weights: str = self.optimizer.param_groups[0]["weights"]
        return weights

    @property
    def written(self) -> Mapping[Tensor, int]:
        """Which parameters hold a sample, and how far."""
        return self._written

    def resume(self, written: Mapping[Tensor, int] | None) -> None:
        """In a copy: what the original had written; in what was loaded that is not known, so all that it may be."""
        if self.weights == MEAN:
            return
        self._written = {
            parameter: parameter.numel()
            for group, _, parameter in self.optimizer.parameters()
            if group["perturb"] and parameter.requires_grad and parameter in self.optimizer.state
        }
        if written is not None:
            self._written = dict(written)
        if self.weights == TRAIN:
            self._remember_versions()

    def _remember_versions(self) -> None:
        self._versions = {parameter: local(parameter)._version for parameter in self._written}

    def holds_sample(self, parameter: Tensor) -> bool:
        """Whether a parameter holds a sample at this moment."""
        return self.weights != MEAN and parameter in self._written

    def eps(self, group: dict[str, Any], index: int, block: Block, sample: int, like: Tensor) -> Tensor:
        """The standard normals of one sample at a block of parameter ``index``; valid until the next call."""
        pair = sample // 2 if group["antithetic"] else sample
        eps = self.scratch.get("eps", math.prod(block.shape), like.dtype, like.device).view(block.shape)
        if eps.numel() <= noise.SMALL and block.shape == block.full_shape:
            draw = self._ahead.draw(
                group["seed"],
                group["noise_step"],
                pair,
                index,
                device=like.device,
                sizes=partial(self._small_sizes, index, like),
                until=group["mc_samples"] // (2 if group["antithetic"] else 1),
                steps=AHEAD,
            )
            eps.copy_(draw.view(block.shape))
        else:
            noise.normal(
                group["seed"],
                group["noise_step"],
                pair,
                index,
                block.shape,
                offset=block.offset,
                full_shape=block.full_shape,
                out=eps,
                scratch=self.scratch,
            )
        return eps.neg_() if group["antithetic"] and sample % 2 else eps

    def _small_sizes(self, asked: int, like: Tensor) -> dict[int, int]:
        """Of the one that is asked for, which may be sharded and yet whole on this rank, and of its small peers."""
        return {
            index: parameter.numel()
            for group, index, parameter in self.optimizer.parameters()
            if index == asked
            or (
                0 < parameter.numel() <= noise.SMALL
                and group["perturb"]
                and parameter.requires_grad
                and parameter.device == like.device
                and not is_sharded(parameter)
            )
        }

    @torch.inference_mode(False)  # what is made here and kept must be of use in training
    @torch.no_grad()
    def perturb(self, sample: int, then: str) -> None:
        """Put a sample into the weights, which then hold ``then``; if that fails, they are the mean again."""
        if self.weights == BLOCK:  # a checkpoint or a copy that was made inside a block
            self.restore()
        adopt = self.weights == MEAN
        before, self._written = self._written, {}
        try:
            for group, index, parameter in self.optimizer.parameters():
                if parameter.requires_grad and group["perturb"]:
                    self._write(group, index, parameter, sample, adopt)
            for frozen in before.keys() - self._written.keys():  # since the last sample
                local(frozen).copy_(local(self.optimizer.state[frozen]["mean"]))
        except BaseException:
            self._written = {**before, **self._written}
            self.restore()
            raise
        self.optimizer.set_all("weights", then)
        self._remember_versions()
        torch.clear_autocast_cache()

    def _write(self, group: dict[str, Any], index: int, parameter: Tensor, sample: int, adopt: bool) -> None:
        """``weights = mean + sigma * eps``; ``adopt``: the weights are the mean, and the state's follows them first."""
        state, weights = self.optimizer.state_of(parameter, group), local(parameter)
        self._written[parameter] = 0
        compiles = self.optimizer.compiles
        for block, views in walk(parameter, state, tiled=compiles):
            part = block.of(weights)
            if compiles and compiled.fits(block, [part, *views.values()]):
                draw = compiled.Draw(group, index, block, sample)
                version = part._version
                self._written[parameter] = block.stop
                try:
                    compiled.sample_(part, self.optimizer.rule, views, hyper(group, state, views), draw, adopt=adopt)
                except BaseException:
                    if part._version == version:  # interrupted before it ran: while it was compiled, say
                        self._written[parameter] = block.start
                    raise
                continue
            if adopt:
                follow(views["mean"], part)
            theta = self.optimizer.rule.precision(views, hyper(group, state, views)).rsqrt_()
            theta.mul_(self.eps(group, index, block, sample, theta))
            self._written[parameter] = block.stop
            torch.add(theta, views["mean"], out=part)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the mean back wherever a sample was written."""
        for parameter, stop in self._written.items():
            weights, state = local(parameter), self.optimizer.state[parameter]
            if self.weights != MEAN:
                weights.copy_(local(state["mean"]))
                continue
            for block, views in walk(parameter, state, tiled=self.optimizer.compiles):
                if block.stop <= stop:
                    block.of(weights).copy_(views["mean"])
        self._written, self._versions = {}, {}
        self.optimizer.set_all("weights", MEAN)
        torch.clear_autocast_cache()

    def rebuild(self) -> None:
        """After loading: the weights become what the loaded groups say, from the loaded mean."""
        loaded, written = self.weights, self._written
        if loaded != MEAN:
            self.restore()
            if loaded == TRAIN:
                self.perturb(0, TRAIN)
            else:  # the model may yet be loaded, with the block's sample
                self._written = written
            self.optimizer.set_all("weights", loaded)

    @torch.inference_mode(False)
    @torch.no_grad()
    def reconcile(
        self, sample: int, *, allow_mean: bool = False, adopt: bool = False, among: Iterable[Tensor] | None = None
    ) -> None:
        """Deal with weights that others wrote while they held a sample (a checkpoint was loaded, say).

        The same sample is fine. The mean is replaced by the sample if ``allow_mean``, anything else becomes the new
        mean if ``adopt``; otherwise it is an error, since the step would use a gradient from other weights.
        """
        for group, index, parameter, found in self._overwritten(sample, among):
            weights, mean = local(parameter), local(self.optimizer.state[parameter]["mean"])
            if torch.equal(found, mean.to(found.dtype)) and allow_mean:
                continue
            if not adopt:
                weights.copy_(found)
                raise RuntimeError(
                    f"parameter {self.optimizer.name_of(parameter)} must hold the sample that train() drew, "
                    "got other values: call train() after loading a checkpoint, and eval() before changing weights "
                    "(now, eval() takes them as the mean)"
                )
            mean.copy_(found)
            self._write(group, index, parameter, sample, adopt=False)
            self._versions[parameter] = weights._version

    @torch.inference_mode(False)
    @torch.no_grad()
    def release(self) -> list[Tensor]:
        """End of drop-in training: the mean back, but not over what others wrote since, which is the mean from now on.

        Returns:
            The parameters that others wrote.
        """
        others: list[Tensor] = []
        for _, _, parameter, found in self._overwritten(0):
            if not torch.equal(found, local(self.optimizer.state[parameter]["mean"]).to(found.dtype)):
                local(parameter).copy_(found)
                others.append(parameter)
        for other in others:
            del self._written[other]
        self.restore()
        return others

    def _overwritten(
        self, sample: int, among: Iterable[Tensor] | None = None
    ) -> Iterator[tuple[dict[str, Any], int, nn.Parameter, Tensor]]:
        """Parameters to which others wrote something else since they were given their sample, and what it was.

        They hold the sample again.
        """
        candidates = self._versions if among is None else self._versions.keys() & set(among)
        changed = {p for p in candidates if local(p)._version != self._versions[p]}
        if not changed:
            return
        for group, index, parameter in self.optimizer.parameters():
            if parameter in changed:
                weights = local(parameter)
                found = weights.clone()
                self._write(group, index, parameter, sample, adopt=False)
                self._versions[parameter] = weights._version
                if not torch.equal(weights, found):
                    yield group, index, parameter, found
