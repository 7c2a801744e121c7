"""The number of a draw of noise, which is the same for all parameters."""

from __future__ import annotations

from typing import NamedTuple


class Draw(NamedTuple):
    """Number of a sample and step, for all parameters."""

    seed: int
    step: int
    sample: int
    antithetic: bool

    @property
    def pair(self) -> int:
        """Number of the draw: two antithetic samples share one."""
        return self.sample // 2 if self.antithetic else self.sample

    @property
    def negative(self) -> bool:
        """Whether the noise of this sample has the opposite sign, as the second one of an antithetic pair."""
        return self.antithetic and self.sample % 2 == 1
