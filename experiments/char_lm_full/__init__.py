"""``char-lm`` at the published length: 200 epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from experiments.char_lm.experiment import CharLM
from experiments.char_lm.notes import CHOICES
from experiments.experiment import Report
from experiments.results import Result


class FullCharLM(CharLM):
    """The same units with longer trainings. Settings are chosen in five epochs, and every epoch has a checkpoint."""

    name = "char-lm-full"
    title = "Characters of War and Peace, at the published length"

    def __init__(self) -> None:
        super().__init__(
            {"lstm": 200, "transformer": 60},
            5,
            {"published": 3, "constant": 0, "lstm": 3, "transformer": 3},
            records=1,
        )

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return a report like that of ``char-lm``, without its findings."""
        return replace(super().report(results), notes=CHOICES)


EXPERIMENT = FullCharLM()
