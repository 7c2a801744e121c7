"""Files that are damaged at random: refused by the one error, or what is read is what was written."""

import json
import random
import shutil

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from bayesadam import files
from bayesadam.sklearn import RunError, Settings, fit_table
from bayesadam.tables.encoder.read_table import read_table
from bayesadam.tables.runs.predict_table import predict_table
from bayesadam.tables.runs.run_folder import load_run, rewrite_report

VALUES = (None, True, -1, 0, 5, 2**70, 1e308, float("nan"), "", "x", [], [0], {}, {"a": 1}, ["mean/w"], "Mixture")


def flipped(content, rng):
    broken = bytearray(content)
    for _ in range(rng.choice((1, 1, 20))):
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    return bytes(broken)


def cut(content, rng):
    return content[: rng.randrange(len(content))]


def longer(content, rng):
    return content + rng.randbytes(rng.randrange(1, 100))


def moved(content, rng):
    begin, length = rng.randrange(len(content)), rng.randrange(1, 64)
    return content[:begin] + content[begin + length :] + content[begin : begin + length]


def change(record, rng):
    """Replace or remove one entry, at a random depth."""
    name = rng.choice(list(record) if isinstance(record, dict) else range(len(record)))
    if isinstance(record[name], dict | list) and record[name] and rng.random() < 0.7:
        change(record[name], rng)
    elif rng.random() < 0.2:
        del record[name]
    else:
        record[name] = rng.choice(VALUES)


WAYS = (flipped, cut, longer, moved)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a table and a run of each task."""
    folder = tmp_path_factory.mktemp("runs")
    generator = np.random.default_rng(0)
    size, city = generator.normal(50, 20, 80), generator.choice(["Rome", "Oslo", "Köln"], 80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayesadam.tables.runs.fit_table.write_report", lambda path, data: path.write_text("page"))
        for name, target in (("numbers", size + generator.normal(size=80)), ("labels", np.where(size > 50, "a", "b"))):
            csv.write_csv(pa.table({"size": size, "city": city, "y": target}), folder / f"{name}.csv")
            settings = Settings(str(folder / f"{name}.csv"), "y", members=2, epochs=3, hidden=(4,))
            fit_table(settings, out=folder / name)
    return folder


@pytest.mark.parametrize("name", ["posterior.safetensors", "model.json", "report.json"])
def test_runs(made, tmp_path, monkeypatch, name):
    """Damaged bytes, another value without its digest or with it, the file of another run, or no file."""
    monkeypatch.setattr(
        "bayesadam.tables.runs.run_folder.write_report", lambda path, data: path.write_text(json.dumps(data))
    )

    def use(path):
        if name == "report.json":
            return rewrite_report(path).read_text()
        return predict_table(load_run(path), read_table(made / "numbers.csv", typed=False))[0]

    shutil.copytree(made / "numbers", tmp_path / "run")
    file, expected = tmp_path / "run" / name, use(made / "numbers")
    content, rng, refused = file.read_bytes(), random.Random(1), 0
    for trial in range(48):
        if trial % 2 or name.endswith("s"):
            file.write_bytes(rng.choice(WAYS)(content, rng))
        else:
            record = json.loads(content)
            change(record, rng)
            if trial % 4:
                record["digest"] = files._digest({name: record[name] for name in record if name != "digest"})
            file.write_text(json.dumps(record))
        try:
            assert use(tmp_path / "run") == expected or trial % 4 == 2
        except RunError:
            refused += 1
    assert refused > 24
    file.unlink()
    with pytest.raises(RunError, match="it lacks"):
        use(tmp_path / "run")
    if name != "report.json":
        shutil.copy(made / "labels" / name, file)
        with pytest.raises(RunError, match="cannot be read"):
            use(tmp_path / "run")
