"""Methods that a class must not inherit, since they were derived from another one that the class defines anew."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any


def leave_out_derived(
    cls: type, base: type, sources: Collection[str], derived: Collection[str], *, abstract: bool = True
) -> None:
    """Give a new class the general definition of methods whose closed forms are of a source that it defines anew.

    A source is defined anew if the class itself or a mixin has it; what they define beside it is kept.

    Args:
        cls: The class.
        base: The base class, whose definitions hold for all sources; those of mixins, which are no subclasses of it, do
            as well.
        sources: Names of the sources.
        derived: Names of the methods that are derived from them.
        abstract: Whether the definitions of abstract classes hold for all sources, too.
    """
    owner = min(_owner(cls, name) for name in sources)
    if cls.__mro__[owner] is not cls and issubclass(cls.__mro__[owner], base):
        return  # which was handled when that class was made
    for name in derived:
        if owner < _owner(cls, name):
            general = _general(cls, owner, base, name, abstract=abstract)
            if general is not inspect.getattr_static(cls, name):
                setattr(cls, name, general)


def _owner(cls: type, name: str) -> int:
    """The number of the first class in the method resolution order that has a name."""
    return next(number for number, parent in enumerate(cls.__mro__) if name in vars(parent))


def _general(cls: type, owner: int, base: type, name: str, *, abstract: bool) -> Any:
    """The first definition after the owner that holds for all sources."""
    for parent in cls.__mro__[owner + 1 :]:
        holds = parent is base or not issubclass(parent, base) or (abstract and inspect.isabstract(parent))
        if holds and name in vars(parent):
            return vars(parent)[name]
    raise AttributeError(f"{base.__name__} must define {name}, got none")
