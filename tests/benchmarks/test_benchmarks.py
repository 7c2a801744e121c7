"""Where benchmarks write: a run of one's own must not change the numbers that the documentation is compared with."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "record")
COMMITTED = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.fixture(scope="module")
def record():
    return runpy.run_path(str(ROOT / "benchmarks" / "record.py"))


def test_results_go_to_a_folder_that_git_ignores(record):
    folder = record["arguments"]().parse_args([]).output
    assert folder == ROOT / "runs" / "benchmarks"
    assert "/runs/" in (ROOT / ".gitignore").read_text().splitlines()


def test_committed_results_are_written_on_request(record, tmp_path):
    options = record["arguments"]("What it measures.").parse_args(["--output", str(tmp_path / "results")])
    record["save"](options.output / "one.json", {"seconds": 1.5})
    assert json.loads((tmp_path / "results" / "one.json").read_text()) == {"seconds": 1.5}
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["one.json"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_writes_where_it_is_told(script):
    source = script.read_text()
    assert re.findall(r"\bsave\(([^,]+),", source) == [f'options.output / "{script.stem}.json"']
    assert re.search(r"\barguments\(__doc__\)", source)
    assert '"results" /' not in source
    assert '/ "results"' not in source


def test_every_committed_result_has_its_benchmark():
    assert {path.stem for path in COMMITTED} == {path.stem for path in SCRIPTS}
