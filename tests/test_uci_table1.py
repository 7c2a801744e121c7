"""The published protocol of Khan et al. 2018, Table 1, made short."""

import os

import pytest
from experiments import runner
from experiments.results import Store, finished
from experiments.uci_table1.experiment import UCI, report
from experiments.uci_table1.protocol import folds, splits

pytestmark = pytest.mark.skipif(not os.environ.get("BAYESADAM_DATA"), reason="needs BAYESADAM_DATA: the UCI data sets")


class Short(UCI):
    """Two splits of two data sets, few rounds and epochs."""

    def __init__(self, folder):
        super().__init__(("wine", "yacht"), splits=2, rounds=2, startup=1, folds=2, epochs=2, evaluation_samples=4)
        self._folder = folder

    @property
    def folder(self):
        return self._folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uci")
    experiment = Short(folder)
    summary = runner.run(experiment, jobs=1, runs=folder / "runs")
    return experiment, summary, finished(experiment.units(), Store.of(experiment, folder / "runs"))


def test_all_units_end_with_scores_of_every_split(ran):
    experiment, summary, results = ran
    assert summary.failed == {}
    assert sorted(results) == sorted(unit.key for unit in experiment.units())
    assert set(results) == {"vadam-wine", "vadam-joint-wine", "vprop-wine", "vadam-yacht", "vprop-yacht"}
    for result in results.values():
        assert len(result.result["splits"]) == 2
        for split in result.result["splits"]:
            assert 0 < split["rmse"] < 30
            assert split["stopped"] == "epochs"
        assert len(result.result["curves"]["rmse"]) == 2
        last = sum(split["rmse"] for split in result.result["splits"]) / 2
        assert result.result["curves"]["rmse"][-1] == pytest.approx(last, rel=1e-12)


def test_vprop_takes_the_precisions_of_vadam_and_what_is_tuned_matters(ran):
    _, _, results = ran

    def precisions(key):
        return [(split["log_noise"], split["log_prior"]) for split in results[key].result["splits"]]

    assert precisions("vprop-wine") == precisions("vadam-wine")
    scores = [
        [s["validation_log_likelihood"] for s in results[f"vadam-{k}"].result["splits"]] for k in ("wine", "yacht")
    ]
    assert all(isinstance(value, float) for row in scores for value in row)
    joint = [split["validation_log_likelihood"] for split in results["vadam-joint-wine"].result["splits"]]
    assert joint != scores[0]


def test_the_report_puts_the_papers_numbers_beside(ran):
    experiment, _, results = ran
    found = report(results, ("wine", "yacht"))
    text = "\n".join(table.markdown() for table in found.tables)
    assert "| yacht |" in text
    assert "1.32 ± 0.10" in text  # Table 1, RMSE
    assert "-1.70 ± 0.03" in text  # Table 1, log-likelihood
    assert "learning-curves" in experiment.report(results).figures


def test_the_parts_are_the_published_ones_standardised_by_their_training_part():
    for split in splits("yacht", 2):
        x, y = split.train
        assert (len(x), len(split.x)) == (277, 31)
        assert x.mean(0).abs().max() < 1e-5
        assert y.std() == pytest.approx(1.0, abs=1e-5)
    for parts in folds("yacht", 2, 5, 123):
        assert sum(len(part.x) for part in parts) == 277
        assert all(len(part.x) + len(part.train[0]) == 277 for part in parts)
        assert all(part.train[1].mean().abs() < 1e-5 for part in parts)
