"""``half-cheetah`` at the published length: 3,000 episodes and 5 seeds."""

from __future__ import annotations

from experiments.half_cheetah.experiment import HalfCheetah


class FullHalfCheetah(HalfCheetah):
    """The same protocol, with more episodes: about three hours of one core for each of the 30 units."""

    name = "half-cheetah-full"
    title = "HalfCheetah at the published length"

    def __init__(self) -> None:
        super().__init__(seeds=5, episodes=3000)


EXPERIMENT = FullHalfCheetah()
