"""An experiment for the tests of the runner, which starts many processes: what takes long to import is in functions."""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from experiments import Experiment, Number, Report, Table, Unit, replacing

SOURCE = "Nobody et al. 1999, Table 7"


@dataclass
class Toy(Experiment):
    """Its units are in ``toy.json``; each walks at random, or does what its config says."""

    root: Path

    name = "toy"
    title = "A toy"
    source = SOURCE

    @property
    def folder(self):
        return self.root / "toy"

    def units(self):
        return [Unit(**fields) for fields in json.loads((self.root / "toy.json").read_text())]

    def run(self, unit, context):
        import torch

        assert not (context.folder / "error.txt").exists()
        state = context.folder / "walk.json"
        walk = json.loads(state.read_text()) if state.exists() else [0]
        with open(self.root / "runs.txt", "a") as file:
            file.write(f"{unit.key} {len(walk)} {torch.get_num_threads()} {os.getpid()}\n")
        match unit.config.get("do"):
            case "fail":
                raise ValueError("no luck\nat all")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "return":
                return json.loads(unit.config["json"])
        while len(walk) < unit.config.get("steps", 3):
            walk.append((75 * walk[-1] + len(unit.key) + 74) % 65537)
            with replacing(state) as path:
                path.write_text(json.dumps(walk))
            context.progress(len(walk), unit.config.get("steps", 3), f"step {len(walk)}")
            while len(walk) == unit.config.get("wait") and not (self.root / "go").exists():
                (self.root / f"{unit.key}.waits").touch()
                time.sleep(0.02)
        return {"walk": walk, "got": {key: result["walk"][-1] for key, result in context.results.items()}}

    def report(self, results):
        from matplotlib import pyplot

        figure, axes = pyplot.subplots()
        axes.plot([1, 2])
        rows = [[key, Number(result.result["walk"][-1], 120.0), 2.5] for key, result in results.items()]
        return Report([Table("Walks", ["unit", "ours", "paper"], rows)], {"the_walks": figure}, "*All* departs.\n")


EXPERIMENT = Toy(Path.cwd())  # for the command line, run in some folder
