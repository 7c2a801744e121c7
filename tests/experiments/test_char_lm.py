"""The language model of characters, made short: what is published, resuming, and from training to the report."""

import dataclasses
import itertools
import math
import os
import warnings

import pytest
import torch
from torch.nn import functional as F

import bayesadam as ba
from experiments import Context, registry
from experiments.char_lm import training
from experiments.char_lm.evaluation import mean_loss, scores
from experiments.char_lm.experiment import CharLM
from experiments.char_lm.findings import findings
from experiments.char_lm.networks import NETWORKS as CLASSES
from experiments.char_lm.networks import build, rows
from experiments.char_lm.protocol import best, run
from experiments.char_lm.report import report
from experiments.char_lm.settings import CHOSEN, NETWORKS, PASSAGE, PROTOCOL, PUBLISHED, UNITS
from experiments.char_lm.text import Streams, Text, Windows
from experiments.results import Result

SMALL = {
    "lstm": {"sizes": {"embedding": 4, "hidden": 6, "layers": 2}, "batch_size": 3, "length": 5},
    "transformer": {"sizes": {"width": 8, "heads": 2, "layers": 1, "length": 8}, "batch_size": 3, "length": 8},
}
SMALL = {name: {**NETWORKS[name], **small} for name, small in SMALL.items()}


def sentence(count=800):
    """Characters that are easy to predict: a short text again and again, with some noise."""
    codes = torch.arange(count) * 7 % 5
    return torch.where(torch.rand(count, generator=torch.Generator().manual_seed(1)) < 0.1, 0, codes)


TEXT = Text.divided(sentence(), "abc d")
SETTINGS = {
    **{f"lstm-{name}": ("lstm", setting) for name, setting in PUBLISHED.items()},
    "lstm-vadagrad": (
        "lstm",
        {**PUBLISHED["vadagrad"], "options": {**PUBLISHED["vadagrad"]["options"], "unit": "data"}},
    ),
    **{f"{net}-{name}": (net, found[0]) for net, methods in CHOSEN.items() for name, found in methods.items()},
}


def config_of(network, setting, **changes):
    start = {**PROTOCOL, **SMALL[network], "epochs": 2, "seed": 3, "part": "final", "samples": [], "passage": 0}
    return {**start, **setting, **changes}


def silent(done, total, note=""):
    pass


class TestText:
    def test_the_parts_are_contiguous_and_of_the_sizes_of_torch_rnn(self):
        codes = torch.arange(107)
        text = Text.divided(codes, "x")
        assert [len(part) for part in (text.train, text.validation, text.test)] == [87, 10, 10]
        assert torch.equal(torch.cat([text.train, text.validation, text.test]), codes)

    def test_streams_go_on_where_they_were(self):
        data = Streams(torch.arange(100), batch_size=3, length=4)
        assert (data.steps, data.x.shape) == (8, (3, 32))
        blocks = [data.x[data.block(step)] for step in range(8)]
        assert all(torch.equal(block[:, 1:], block[:, :-1] + 1) for block in blocks)
        assert all(torch.equal(after[:, 0], block[:, -1] + 1) for block, after in itertools.pairwise(blocks))
        assert torch.equal(data.y, data.x + 1)
        assert torch.equal(data.x.flatten(), torch.arange(96))

    def test_windows_come_once_each_in_an_order_of_the_seed(self):
        data = Windows(torch.arange(100), batch_size=3, length=4)
        seen = torch.cat([data.x[data.block(step, data.order(5))] for step in range(data.steps)])
        assert torch.equal(seen.flatten().sort().values, torch.arange(96))
        assert torch.equal(data.order(5), data.order(5))
        assert not torch.equal(data.order(5), data.order(6))
        assert torch.equal(data.x[data.block(1)], data.x[3:6])

    def test_a_text_that_is_too_short(self):
        with pytest.raises(ValueError, match="codes must be more than a block of 12, got 12"):
            Streams(torch.arange(12), batch_size=3, length=4)

    @pytest.mark.skipif(not os.environ.get("BAYESADAM_DATA"), reason="needs BAYESADAM_DATA: War and Peace")
    def test_war_and_peace(self):
        text = Text.load()
        assert len(text.alphabet) == 84
        assert len(text.validation) == len(text.test) == 325_822
        assert Streams(text.train, 50, 50).steps == 1042
        start = "".join(text.alphabet[code] for code in text.train[:20])
        assert start.startswith("\ufeff")


class TestNetworks:
    def test_the_lstm_starts_as_that_of_torch_rnn(self):
        torch.manual_seed(0)
        lstm = CLASSES["lstm"][0](84, embedding=64, hidden=128, layers=2)
        trained = {name: p for name, p in lstm.named_parameters() if p.requires_grad}
        assert sum(p.numel() for p in trained.values()) == 84 * 64 + 512 * 193 + 512 * 257 + 84 * 129
        assert not any("bias_hh" in name for name in trained)
        first = lstm.lstm.weight_ih_l0
        assert abs(first.std().item() * math.sqrt(192.0) - 1.0) < 5 / math.sqrt(2 * first.numel())
        bias = lstm.lstm.bias_ih_l1.view(4, 128)
        assert torch.equal(bias, torch.tensor([0.0, 1.0, 0.0, 0.0])[:, None].expand(4, 128))

    @pytest.mark.parametrize("network", ["lstm", "transformer"])
    def test_no_character_sees_what_comes_after(self, network):
        model = build(config_of(network, PUBLISHED["sgd"]), 5)
        x = torch.tensor([[0, 1, 2, 3, 4]])
        other = x.clone()
        other[0, 3] = 0
        one, two = model(x)[0], model(other)[0]
        assert torch.equal(one[:, :3], two[:, :3])
        assert not torch.allclose(one[:, 3:], two[:, 3:])

    def test_the_state_carries_what_came_before(self):
        model = build(config_of("lstm", PUBLISHED["sgd"]), 5)
        x = torch.tensor([[0, 1, 2, 3, 4, 0]])
        whole = model(x)[0]
        first, state = model(x[:, :3])
        second, _ = model(x[:, 3:], state)
        torch.testing.assert_close(torch.cat([first, second], 1), whole)


class TestSchedule:
    def test_the_published_decay_is_scaled_to_the_epochs_run(self):
        slow = training.annealing(config_of("lstm", PUBLISHED["sgd"]))
        fast = training.annealing(config_of("lstm", PUBLISHED["vadagrad"]))
        for epoch, expected in ((0, 1.0), (39.9, 1.0), (40.0, 0.1), (79.9, 0.1), (80.0, 0.01), (199.9, 1e-4)):
            assert fast(epoch / 200) == pytest.approx(expected)
        for epoch, expected in ((79.9, 1.0), (80.0, 0.1), (160.0, 0.01), (199.9, 0.01)):
            assert slow(epoch / 200) == pytest.approx(expected)

    def test_no_decay(self):
        steady = training.annealing(config_of("lstm", PUBLISHED["adam"], decay_every=200))
        assert {steady(done / 100) for done in range(100)} == {1.0}

    def test_others_anneal_as_our_optimisers_do(self):
        adamw = training.annealing(config_of("lstm", CHOSEN["lstm"]["adamw"][0]))
        assert adamw(0.0) == 1.0
        assert adamw(0.5) == pytest.approx(0.505)
        assert training.annealing(config_of("lstm", CHOSEN["lstm"]["ivon"][0])) is None

    def test_the_rate_reaches_the_optimizer(self, tmp_path, monkeypatch):
        rates, real = [], training._step

        def step(model, optimizer, *rest):
            rates.append(optimizer.param_groups[0]["lr"])
            return real(model, optimizer, *rest)

        monkeypatch.setattr(training, "_step", step)
        trained = training.train(config_of("lstm", PUBLISHED["adam"]), TEXT, tmp_path, silent)
        steps = len(rates)
        assert steps == trained.steps == 2 * Streams(TEXT.train, 3, 5).steps
        expected = [0.0012 * 0.1 ** int(5 * step / steps) for step in range(steps)]
        assert rates == pytest.approx(expected)


class TestOptimizers:
    def test_adagrad_counts_squares_as_the_paper_does(self):
        weight = torch.nn.Linear(1, 1, bias=False)
        start = weight.weight.item()
        config = config_of("lstm", PUBLISHED["adagrad"])
        optimizer = training.make_optimizer(weight, config, 100, 10)
        value, total = start, 0.0
        for gradient in (3.0, -1.0, 2.0):
            weight.weight.grad = torch.full((1, 1), gradient)
            optimizer.step()
            total += 0.5 * gradient**2
            value -= 0.025 * gradient / math.sqrt(total)
        assert weight.weight.item() == pytest.approx(value, rel=1e-5)

    @pytest.mark.parametrize("unit", ["mean", "data", "sum"])
    def test_units_of_vadagrad(self, unit):
        """The step is that of ``s`` in the unit of the gradient; the variance is ``1 / s`` or ``1 / (N s)``."""
        weight, characters = torch.nn.Linear(1, 1, bias=False), 100
        config = config_of("lstm", PUBLISHED["vadagrad"])
        config["options"] = {**config["options"], "unit": unit}
        optimizer = training.make_optimizer(weight, config, characters, 10)
        value, scale = weight.weight.item(), characters if unit == "sum" else 1.0
        s = 1e-4
        for gradient in (0.3, -0.1):
            with optimizer.sampled_params():
                weight.weight.grad = torch.full((1, 1), gradient)
            optimizer.step()
            s += 0.5 * (scale * gradient) ** 2
            value -= 0.0075 * scale * gradient / math.sqrt(s)
        assert weight.weight.item() == pytest.approx(value, rel=1e-4)
        variance = optimizer.posterior(weight).variance["weight"].item()
        assert variance == pytest.approx(1.0 / (s * (characters if unit == "data" else 1.0)), rel=1e-4)

    @pytest.mark.parametrize("name", ["ivon", "vadam"])
    def test_ours_are_told_the_length_and_the_sizes(self, name):
        config = config_of("transformer", CHOSEN["transformer"]["ivon"][0], method=name)
        model = build(config, 5)
        optimizer = training.make_optimizer(model, config, 1234, 77)
        perturbed = [group for group in optimizer.param_groups if group["perturb"]]
        assert {group["batch_size"] for group in perturbed} == {24}
        assert {group["total_steps"] for group in perturbed} == {77}
        assert {group["num_data"] for group in perturbed} == {1234}
        still = [p.shape for group in optimizer.param_groups if not group["perturb"] for p in group["params"]]
        assert len(still) == 6  # gains and shifts of three layer norms


class Killed(Exception):
    pass


@pytest.mark.filterwarnings("ignore:.*its width is not learned")
@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_killed_training_continues_to_the_same_end(name, tmp_path, monkeypatch):
    monkeypatch.setattr("bayesadam.engine.kernels.available", lambda: False)  # compiling takes longer than training
    network, setting = SETTINGS[name]
    config = config_of(network, setting)
    whole = training.train(config, TEXT, tmp_path / "whole", silent)

    steps, real = [], training._step

    def step(*args):
        steps.append(1)
        if len(steps) == int(0.8 * whole.steps):
            raise Killed
        return real(*args)

    monkeypatch.setattr(training, "_step", step)
    with pytest.raises(Killed):
        training.train(config, TEXT, tmp_path / "killed", silent)
    steps.clear()
    again = training.train(config, TEXT, tmp_path / "killed", silent)
    assert 0 < len(steps) <= whole.steps // 2
    for one, two in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert whole.curve == again.curve
    assert len(whole.curve.epoch) == 4
    if whole.posterior is not None:
        for key, variance in whole.posterior.variance.items():
            assert torch.equal(variance, again.posterior.variance[key])


def test_a_training_that_diverges_says_when(tmp_path):
    config = config_of("lstm", {"method": "sgd", "decay": "steps", "decay_every": 40, "options": {"lr": 1e38}})
    result = run(config, Context(tmp_path, {}, silent), TEXT)
    assert result["diverged"] is not None
    assert result["diverged"] > 1
    assert math.isnan(result["validation"])
    assert "test" not in result


def test_the_best_candidate_has_the_lowest_validation_loss():
    found = {"a": {"validation": 2.0}, "b": {"validation": 1.5}, "c": {"validation": None}}
    assert best(found) == "b"
    assert best({}) is None
    with pytest.raises(ValueError, match="a candidate must not diverge, but all did: c"):
        best({"c": found["c"]})


class TestScores:
    @pytest.mark.parametrize("network", ["lstm", "transformer"])
    def test_samples_are_averaged_as_probabilities(self, network):
        """By a loop over the text for each sample, with ``Posterior.sample``."""
        config = config_of(network, PUBLISHED["sgd"])
        model = build(config, 5)
        names = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        posterior = ba.DiagonalGaussian(names, {name: torch.full_like(p, 0.04) for name, p in names.items()})
        data = rows(config, TEXT.test)
        found = scores(model, posterior, data, (2, 3), passage=7)
        draws, total = posterior.sample(3), 0.0
        for number in range(3):
            model.load_state_dict({**model.state_dict(), **{name: draw[number] for name, draw in draws.items()}})
            if network == "lstm":
                logits = model(data.x)[0]  # the streams as a whole
            else:
                logits = model(data.x.view(-1, 8))[0]
            total = total + logits.softmax(-1)
            if number >= 1:
                p = (total / (number + 1)).view(-1, 5)
                nll = F.nll_loss(p.log(), data.y.flatten()).item()
                score = found[f"samples-{number + 1}"]
                assert score["nll"] == pytest.approx(nll, rel=1e-5)
                assert score["perplexity"] == pytest.approx(math.exp(nll), rel=1e-5)
                assert score["accuracy"] == pytest.approx((p.argmax(-1) == data.y.flatten()).float().mean().item())
        piece = found["passage"]
        assert torch.equal(piece["codes"], data.y.flatten()[:7])
        picked = p[torch.arange(7), piece["codes"]]
        torch.testing.assert_close(piece["samples_nll"], -picked.log(), rtol=1e-5, atol=1e-6)
        assert (piece["mutual_information"] > 0).all()
        assert (piece["mutual_information"] < piece["samples_entropy"]).all()

    def test_the_mean_loss_is_that_of_the_weights(self):
        config = config_of("lstm", PUBLISHED["sgd"])
        model, data = build(config, 5), rows(config, TEXT.test)
        expected = F.cross_entropy(model(data.x)[0].flatten(0, 1), data.y.flatten()).item()
        assert mean_loss(model, data) == pytest.approx(expected, rel=1e-5)
        assert scores(model, None, data)["mean"]["nll"] == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every unit, as the runner would do it."""
    folder, found = tmp_path_factory.mktemp("units"), {}
    seeds = {"published": 2, "constant": 1, "lstm": 1, "transformer": 1}
    experiment = CharLM({"lstm": 0.5, "transformer": 0.5}, 0.3, seeds, SMALL, records=4)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*its width is not learned")
        patch.setattr("bayesadam.engine.kernels.available", lambda: False)
        for unit in experiment.units():
            context = Context(folder / unit.key, {key: found[key].result for key in unit.needs}, silent)
            result = run(unit.config, context, TEXT)
            result = _plain(result)
            found[unit.key] = Result("char-lm", unit.key, unit.config, {}, result, 1.0, 1.0, {}, {}, "")
    return found


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


class TestExperiment:
    def test_final_trainings_have_the_setting_that_was_best(self, results):
        for network, methods in CHOSEN.items():
            for name in methods:
                tried = {key: r.result for key, r in results.items() if key.startswith(f"search-{network}-{name}-")}
                assert len(tried) == 3
                final = results[f"{network}-{name}-0"].result
                assert final["chosen"] == best(tried)
                assert final["setting"] == tried[final["chosen"]]["setting"]

    def test_published_trainings_have_the_published_settings(self, results):
        for name, setting in PUBLISHED.items():
            for key, every in ((f"lstm-{name}-1", setting["decay_every"]), (f"constant-{name}-0", 200)):
                found = {**results[key].result["setting"], "options": dict(results[key].result["setting"]["options"])}
                unit = found["options"].pop("unit", None)
                assert found == {**setting, "decay_every": every}
                assert (unit is not None) == (name == "vadagrad")

    def test_the_unit_of_vadagrad_is_the_best(self, results):
        tried = {f"unit-{unit}": results[f"unit-{unit}"].result for unit in UNITS}
        for key in ("lstm-vadagrad-0", "constant-vadagrad-0"):
            result = results[key].result
            assert result["chosen"] == best(tried)
            assert f"unit-{result['setting']['options']['unit']}" == result["chosen"]

    def test_methods_with_a_posterior_are_scored_with_samples(self, results):
        for key, kinds in {
            "lstm-ivon-0": {"mean", "samples-8", "samples-32"},
            "lstm-adamw-0": {"mean"},
            "transformer-ivon-0": {"mean", "samples-8", "samples-32"},
        }.items():
            assert set(results[key].result["test"]) == kinds
        text = results["transformer-ivon-0"].result["passage"]["text"]
        assert 0 < len(text) <= PASSAGE
        assert set(text) <= set("abc d")

    def test_the_report_puts_published_losses_beside_ours(self, results):
        found = report(results)
        first = found.tables[0].markdown()
        assert "| 1.2575 |" in " ".join(first.split())
        assert set(found.figures) == {"curves", "uncertainty_lstm", "uncertainty_transformer"}
        sgd = next(row for row in found.tables[0].rows if row[0] == "SGD")
        last = {key: results[f"lstm-{key}"].result["test"]["mean"]["nll"] for key in ("vadagrad-1", "sgd-1")}
        both = [
            results[f"lstm-vadagrad-{s}"].result["test"]["mean"]["nll"]
            - results[f"lstm-sgd-{s}"].result["test"]["mean"]["nll"]
            for s in (0, 1)
        ]
        assert sgd[4].mean == pytest.approx(sum(both) / 2)
        assert both[1] == last["vadagrad-1"] - last["sgd-1"]

    def test_sentences_say_what_the_trainings_show(self, results):
        def one(key, nll, perplexity=3.0, **more):
            scores = {"nll": nll, "perplexity": perplexity, "ece": 0.1, "accuracy": 0.5}
            result = {"diverged": None, "test": {"mean": scores, **{kind: scores for kind in more.get("kinds", ())}}}
            return key, dataclasses.replace(results["lstm-sgd-0"], unit=key, result=result)

        paper = {"vadagrad": 1.2551, "sgd": 1.2575, "adagrad": 1.2783}
        behind = dict(
            one(f"lstm-{name}-{s}", 2.0 + gap + 0.04 * s * gap)
            for name, gap in (("sgd", 0.0), ("vadagrad", 0.5))
            for s in (0, 1)
        )
        text = findings(behind, paper)
        assert "minus SGD's after equal epochs is +0.510 ± 0.010 nats per character (2 seeds)" in text
        assert "the paper has -0.0024. That VadaGrad is ahead **does not hold here**." in text
        single = dict([one("constant-vadagrad-0", 1.0), one("constant-adagrad-0", 1.5)])
        assert "-0.500 nats per character (1 seed)" in findings(single, paper)
        assert "That VadaGrad is ahead is what this one seed shows." in findings(single, paper)
        kinds = ("samples-8", "samples-32")
        lower = [one(f"transformer-ivon-{s}", 1.2 + 0.01 * s, 3.4, kinds=kinds) for s in range(3)]
        higher = [one(f"transformer-adamw-{s}", 1.3 + 0.012 * s, 3.7) for s in range(3)]
        text = findings(dict(lower + higher), paper)
        assert "IVON's perplexity with 32 samples is 3.400 ± 0.000, AdamW's after as many steps 3.700 ± 0.000" in text
        assert text.count("That it is lower holds here.") == 2
        close = [one(f"transformer-adamw-{s}", 1.2 + 0.02 * s) for s in range(3)]
        assert "not decided: the difference is within two standard errors" in findings(dict(lower + close), paper)
        assert findings(dict(lower), paper) == ""

    def test_the_report_works_with_what_is_finished(self, results):
        for keys in ([], ["unit-data"], ["lstm-sgd-0"], ["lstm-vadagrad-1", "lstm-sgd-0"], ["transformer-ivon-0"]):
            found = report({key: results[key] for key in keys})
            assert len(found.tables) >= bool(keys)
        diverged = dataclasses.replace(
            results["lstm-sgd-0"], result={**results["lstm-sgd-0"].result, "diverged": 3, "test": {}}
        )
        rows = report({"lstm-sgd-0": diverged, "lstm-adam-0": results["lstm-adam-0"]}).tables[0].rows
        assert [row[0] for row in rows] == ["Adam"]

    def test_the_full_length_is_that_of_the_paper(self):
        full = registry.load("char-lm-full")
        configs = {unit.key: unit.config for unit in full.units()}
        assert configs["lstm-vadagrad-2"]["epochs"] == 200
        assert configs["lstm-vadagrad-2"]["decay_every"] == 40
        assert full.folder.name == "char_lm_full"
        short = registry.load("char-lm")
        assert {u.key for u in short.units()} >= {"lstm-vadagrad-2", "constant-adam-0", "transformer-ivon-2"}
