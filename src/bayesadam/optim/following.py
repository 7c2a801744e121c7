"""Letting an optimiser follow the mode of a module: a sample in the weights in training mode, the mean in eval mode."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch import nn

from bayesadam.engine.engine import Engine
from bayesadam.posterior.wrappers import unwrapping


class Follower(Protocol):
    """What is asked of an optimiser."""

    _engine: Engine

    def train(self, mode: bool = True) -> None: ...  # noqa: D102
    def eval(self) -> None: ...  # noqa: D102


class FollowedTrain:
    """Takes the place of a module's ``train``, which ``eval`` calls as well, and tells optimisers of the mode.

    Inside a sampling block, which a closure is called in as well, it does not: there the weights hold a sample whatever
    the mode. It refers weakly to the optimisers. A copy or a pickle of the module has one that tells nobody.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.followers: list[weakref.ref[Any]] = []
        self.__func__ = type(module).train  # as a bound method has it: what the module itself does with its mode

    def __call__(self, mode: bool = True) -> nn.Module:
        """The mean is there before a module merges weights for evaluation, and a sample after it has split them."""
        alive: list[Any] = [follower for reference in self.followers if (follower := reference()) is not None]
        followers: list[Follower] = [follower for follower in alive if not follower._engine.open]
        if not mode:
            for follower in followers:
                follower.eval()
        self.__func__(self.module, mode)
        if mode:
            for follower in followers:
                follower.train()
        return self.module

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.module,)


def follow(optimizer: Follower, model: nn.Module) -> None:
    """From now on ``model.train()`` and ``model.eval()`` call the optimiser's."""
    *_, inner = unwrapping(model)
    known = vars(inner).get("train")
    if not isinstance(known, FollowedTrain):
        known = FollowedTrain(inner)
        vars(inner)["train"] = known
    if all(reference() is not optimizer for reference in known.followers):
        known.followers.append(weakref.ref(optimizer))
