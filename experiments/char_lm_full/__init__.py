"""``char-lm`` at the published length: 200 epochs."""

from __future__ import annotations

from experiments.char_lm.experiment import CharLM


class FullCharLM(CharLM):
    """The same units, longer; the settings are chosen in five epochs. About 100 hours of one core for each network."""

    name = "char-lm-full"
    title = "Characters of War and Peace, at the published length"

    def __init__(self) -> None:
        super().__init__(
            {"lstm": 200, "transformer": 60},
            5,
            {"published": 3, "constant": 0, "lstm": 3, "transformer": 3},
            records=1,
        )


EXPERIMENT = FullCharLM()
