"""Following the ``train()`` and ``eval()`` of a module, by which an optimiser puts a sample or the mean into it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from bayesadam.modules.wrappers import innermost


class FollowedTrain:
    """Replacement of a module's ``train``, which ``eval`` calls as well, that informs followers of the mode.

    It has weak references to the followers; in a copy or a pickle of the module it has no followers.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.followers: list[weakref.ref[Any]] = []
        self.quiet = False
        self.__func__ = type(module).train  # as in a bound method: the original function of the class

    def __call__(self, mode: bool = True) -> nn.Module:
        """Change the mode, so that a module merges weights for evaluation at the mean, and gets a sample after it split
        them.
        """
        if not mode:
            self.tell(mode)
        self.__func__(self.module, mode)
        if mode:
            self.tell(mode)
        return self.module

    def tell(self, mode: bool) -> None:
        """Tell the followers of the mode, unless it is changed for another reason than training."""
        for reference in [] if self.quiet else self.followers:
            follower = reference()
            if follower is not None:
                follower.follow_mode(mode)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.module,)


def follow(follower: Any, model: nn.Module) -> None:
    """Tell the follower of every ``model.train()`` and ``model.eval()`` from now on, by its ``follow_mode``."""
    inner = innermost(model)
    train = vars(inner).get("train")
    if not isinstance(train, FollowedTrain):
        train = FollowedTrain(inner)
        vars(inner)["train"] = train
    if all(reference() is not follower for reference in train.followers):
        train.followers.append(weakref.ref(follower))


def unfollow(follower: Any, model: nn.Module) -> None:
    """Stop telling the follower of the model's modes."""
    inner = innermost(model)
    train = vars(inner).get("train")
    if isinstance(train, FollowedTrain):
        train.followers = [reference for reference in train.followers if reference() not in (None, follower)]
        if not train.followers:
            del vars(inner)["train"]


@contextmanager
def quietly(trains: Iterable[FollowedTrain]) -> Iterator[None]:
    """Context for predictions, in which no follower is told of modes; afterwards they are told if the mode changed."""
    followed = [train for train in trains if not train.quiet]
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
