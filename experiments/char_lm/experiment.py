"""The units: published methods, short trainings of the other methods' candidates, and long ones of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.char_lm.report import report
from experiments.char_lm.settings import (
    CHOSEN,
    EPOCHS,
    NETWORKS,
    PASSAGE,
    PROTOCOL,
    PUBLISHED,
    SAMPLES,
    SEARCH_EPOCHS,
    SEEDS,
    UNITS,
)
from experiments.experiment import Context, Experiment, Report, Unit
from experiments.results import Result


class CharLM(Experiment):
    """Trainings that are shorter than the published ones. The arguments change their lengths.

    Args:
        epochs: Number of epochs of the final trainings, by network.
        search_epochs: Number of epochs of the trainings by which a setting is chosen.
        seeds: Numbers of seeds: ``"published"`` for the published methods with decay, ``"constant"`` for those without,
            and the name of the network for the other methods.
        networks: Networks, as in ``NETWORKS``.
        protocol: Entries that replace those of ``PROTOCOL``.
    """

    name = "char-lm"
    title = "Characters of War and Peace"
    source = "Khan et al. 2018, Fig. 8 and Table 4, with other methods and a transformer beside it"

    def __init__(
        self,
        epochs: Mapping[str, float] = EPOCHS,
        search_epochs: float = SEARCH_EPOCHS,
        seeds: Mapping[str, int] = SEEDS,
        networks: Mapping[str, Mapping[str, Any]] = NETWORKS,
        **protocol: Any,
    ) -> None:
        self._epochs, self._search_epochs, self._seeds = epochs, search_epochs, seeds
        self._networks, self._protocol = networks, {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """Return the units; the final units of a method need those of its candidates."""
        found = []
        for unit in UNITS:
            options = {**PUBLISHED["vadagrad"]["options"], "unit": unit}
            candidate = {**_steady(PUBLISHED["vadagrad"]), "options": options, "part": "search"}
            found.append(self._unit(f"unit-{unit}", "lstm", self._search_epochs, 0, candidate))
        for name, setting in PUBLISHED.items():
            needs: tuple[str, ...] = ()
            if name == "vadagrad":
                setting = {key: value for key, value in setting.items() if key != "options"}
                needs = tuple(f"unit-{unit}" for unit in UNITS)
            for start, own in (("lstm", setting), ("constant", _steady(setting))):
                for seed in range(self._seeds["published" if start == "lstm" else start]):
                    key = f"{start}-{name}-{seed}"
                    found.append(self._unit(key, "lstm", self._epochs["lstm"], seed, own, needs))
        for network, methods in CHOSEN.items():
            for name, candidates in methods.items():
                found += self._searched(network, name, candidates)
        return found

    def _searched(self, network: str, name: str, candidates: Sequence[Mapping[str, Any]]) -> list[Unit]:
        keys = tuple(f"search-{network}-{name}-{number}" for number in range(len(candidates)))
        found = [
            self._unit(key, network, self._search_epochs, 0, {**candidate, "part": "search"})
            for key, candidate in zip(keys, candidates, strict=True)
        ]
        samples = list(SAMPLES) if name in ("ivon", "vadam") else []
        for seed in range(self._seeds[network]):
            setting = {"method": name, "samples": samples, "passage": 0 if seed else PASSAGE}
            found.append(self._unit(f"{network}-{name}-{seed}", network, self._epochs[network], seed, setting, keys))
        return found

    def _unit(
        self,
        key: str,
        network: str,
        epochs: float,
        seed: int,
        setting: Mapping[str, Any],
        needs: tuple[str, ...] = (),
    ) -> Unit:
        config = {**self._protocol, **self._networks[network], "epochs": epochs, "seed": seed, **setting}
        return Unit(key, {"part": "final", "samples": [], "passage": 0, **config}, epochs, needs)

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Train one network, and return its scores."""
        from experiments.char_lm.protocol import run
        from experiments.char_lm.text import Text

        return run(unit.config, context, Text.load())

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return tables and figures with the published losses beside ours."""
        return report(results)


def _steady(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return a setting without decay of the learning rate."""
    return {**setting, "decay_every": PROTOCOL["published_epochs"]}


EXPERIMENT = CharLM()
