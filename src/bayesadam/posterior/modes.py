"""A module whose ``train()`` and ``eval()`` are followed: by an optimiser, which puts a sample or the mean into it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn

from bayesadam.posterior.wrappers import unwrapping


class Follower(Protocol):
    """What is told of a module's mode."""

    def follow_mode(self, training: bool) -> None:
        """The module goes into training mode, or into eval mode."""


class FollowedTrain:
    """Takes the place of a module's ``train``, which ``eval`` calls as well, and tells others of the mode.

    It refers weakly to the followers. A copy or a pickle of the module has one that tells nobody.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.followers: list[weakref.ref[Any]] = []
        self.quiet = False
        self.__func__ = type(module).train  # as a bound method has it: what the module itself does with its mode

    def __call__(self, mode: bool = True) -> nn.Module:
        """The mean is there before a module merges weights for evaluation, and a sample after it has split them."""
        if not mode:
            self.tell(mode)
        self.__func__(self.module, mode)
        if mode:
            self.tell(mode)
        return self.module

    def tell(self, mode: bool) -> None:
        """Tell the followers, unless the mode is changed for other reasons than training."""
        for reference in [] if self.quiet else self.followers:
            follower = reference()
            if follower is not None:
                follower.follow_mode(mode)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.module,)


def follow(follower: Follower, model: nn.Module) -> None:
    """From now on the follower is told of ``model.train()`` and ``model.eval()``."""
    *_, inner = unwrapping(model)
    known = vars(inner).get("train")
    if not isinstance(known, FollowedTrain):
        known = FollowedTrain(inner)
        vars(inner)["train"] = known
    if all(reference() is not follower for reference in known.followers):
        known.followers.append(weakref.ref(follower))


@contextmanager
def quietly(model: nn.Module) -> Iterator[None]:
    """Inside, nobody is told of modes: the weights are those of a prediction. After, they are told if it changed."""
    trains = [vars(module).get("train") for module in model.modules()]
    followed = [train for train in trains if isinstance(train, FollowedTrain) and not train.quiet]
    before = [train.module.training for train in followed]
    for train in followed:
        train.quiet = True
    try:
        yield
    finally:
        for train, training in zip(followed, before, strict=True):
            train.quiet = False
            if train.module.training != training:
                train.tell(train.module.training)
