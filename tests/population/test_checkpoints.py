"""Checkpoints: resuming to the bit from wherever a run was interrupted, and refusing those of another run."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from bayesadam.files import DamagedFile, read_tensors, write_tensors
from bayesadam.optim.vadam import VadamRule
from bayesadam.population import checkpoint as checkpoints
from bayesadam.population.checkpoint import fingerprint
from population.conftest import assert_same, exactly, train
from population.problems import NAN, mlp, models_of, noise_of, regression


class Interrupted(Exception):
    pass


class TestCheckpoint:
    """Five members in chunks of two, of different sizes, some of which stop early."""

    SIZES = (13, 7, 3, 20, 9)

    @pytest.fixture(autouse=True)
    def every_epoch(self, monkeypatch):
        monkeypatch.setattr(checkpoints, "SECONDS", 0.0)

    def run(self, folder=None, **changes):
        options = {
            "models": models_of(count=5),
            "data": regression(self.SIZES),
            "likelihood": noise_of(16.0, 4.0),
            "validation": regression((6,), seed=50)[0],
            "patience": 2,
            "epochs": 5,
            "chunk": 2,
            "lr": [0.05, 0.002, 0.1, 0.02, 0.3],
            "betas": [(0.9, 0.9), (0.8, 0.99), (0.5, 0.9), (0.9, 0.95), (0.9, 0.9)],
            "mc_samples": 2,
            **changes,
        }
        return train(checkpoint=folder, **options)

    def calls(self, log, stop=None):
        def on_epoch(epoch, members, nets):
            if len(log) == stop:
                raise Interrupted
            log.append((epoch, members, copy.deepcopy(nets.mean)))

        return on_epoch

    def test_resumes_to_the_bit_from_wherever_it_was_interrupted(self, tmp_path):
        whole = []
        expected = self.run(on_epoch=self.calls(whole))
        assert "patience" in expected.stopped
        assert "epochs" in expected.stopped
        assert len(whole) > 8
        for stop in range(len(whole)):
            folder, before, after = tmp_path / f"{stop}" / "new", [], []
            with pytest.raises(Interrupted):
                self.run(folder, on_epoch=self.calls(before, stop))
            assert_same(self.run(folder, on_epoch=self.calls(after)), expected)
            for found, due in zip(before + after, whole, strict=True):
                assert found[:2] == due[:2]
                torch.testing.assert_close(found[2], due[2], rtol=0, atol=0)

    @pytest.mark.parametrize("method", ["ivon", "bbb", "adam", "vadagrad"])
    def test_other_methods_with_learned_noise_and_a_schedule(self, tmp_path, method):
        def run(**more):
            options = {"method": method, "epochs": 4, "chunk": 3, "lr_schedule": lambda done: 1.0 - done}
            return train(models_of(count=5), regression(self.SIZES), noise_of(1.0, learned=True), **options, **more)

        with pytest.raises(Interrupted):
            run(checkpoint=tmp_path, on_epoch=self.calls([], 2))
        assert_same(run(checkpoint=tmp_path), run())

    def bad(self):
        """Data of which one member's are not finite."""
        data = regression(self.SIZES)
        data[3][1][0] = NAN
        return data

    WAYS = {  # noqa: RUF012
        "decays": lambda _: {"lr_decay": ba.optim.polynomial_decay(), "beta_decay": ba.optim.polynomial_decay()},
        "replacement": lambda _: {"replacement": True, "steps_per_epoch": 3},
        "full batch": lambda _: {"batch_size": 20},
        "squares": lambda _: {"method": "vogn"},
        "second derivatives": lambda _: {"method": "von", "hessian": "exact", "correction": "elementwise"},
        "a member that goes bad": lambda self: {"data": self.bad(), "nonfinite": "skip"},
    }

    @pytest.mark.parametrize("way", WAYS)
    def test_other_ways_to_train(self, way, tmp_path):
        options = self.WAYS[way](self)
        with pytest.raises(Interrupted):
            self.run(tmp_path, on_epoch=self.calls([], 3), **options)
        assert_same(self.run(tmp_path, **options), self.run(**options))

    def test_a_finished_run_is_loaded(self, tmp_path):
        expected, log = self.run(tmp_path), []
        files = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        assert_same(self.run(tmp_path, on_epoch=self.calls(log)), expected)
        assert log == []
        assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files

    def test_is_written_at_most_every_half_minute_and_when_a_chunk_is_done(self, tmp_path, monkeypatch):
        monkeypatch.undo()
        log = []
        with pytest.raises(Interrupted):
            self.run(tmp_path, on_epoch=self.calls(log, 1), patience=None)
        assert not list(tmp_path.iterdir())
        with pytest.raises(Interrupted):
            self.run(tmp_path, on_epoch=self.calls(log, 7), patience=None)
        assert [path.name for path in tmp_path.iterdir()] == ["chunk-0000.safetensors"]

    def refused(self, folder, **changes):
        message = f"checkpoint must be a folder of this very run, got one of another in {str(folder)!r}"
        with pytest.raises(ValueError, match=exactly(message)):
            self.run(folder, **changes)

    CHANGES = {  # noqa: RUF012
        "learning rate": lambda: {"lr": [0.05, 0.002, 0.1, 0.02, 0.31]},
        "method": lambda: {"method": "vprop"},
        "seed": lambda: {"seed": 1},
        "epochs": lambda: {"epochs": 6},
        "batch size": lambda: {"batch_size": 4},
        "patience": lambda: {"patience": 3},
        "validation samples": lambda: {"validation_samples": 3},
        "noise": lambda: {"likelihood": noise_of(16.0, 4.5)},
        "first weights": lambda: {"models": population.initialize(mlp, seeds=range(1, 6))},
        "network": lambda: {"models": models_of(lambda: nn.Sequential(*mlp()[:1], nn.ReLU(), *mlp()[2:]), 5)},
        "data": lambda: {"data": regression((13, 7, 3, 20, 9), seed=1)},
        "validation data": lambda: {"validation": regression((6,), seed=51)[0]},
        "late change of a schedule": lambda: {"lr_schedule": lambda done: 1.0 if done < 0.9 else 0.1},
        "late change of a decay": lambda: {"beta_decay": lambda step: 1.0 if step < 18 else 0.1},
        "replacement": lambda: {"replacement": True},
        "own method": lambda: {"method": type("Own", (ba.Vadam,), {"rule": type("Own", (VadamRule,), {})()})},
    }

    @pytest.fixture(scope="class")
    @staticmethod
    def stopped(tmp_path_factory):
        folder, test = tmp_path_factory.mktemp("stopped"), TestCheckpoint()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(checkpoints, "SECONDS", 0.0)
            test.run(folder, on_epoch=test.calls([], 2))
        return folder

    @pytest.mark.parametrize("change", CHANGES)
    def test_another_run_is_refused(self, stopped, change):
        self.refused(stopped, **self.CHANGES[change]())

    def test_another_share_of_the_same_data_is_refused(self, tmp_path):
        first, second = regression((9, 9))
        self.run(tmp_path, data=[first, second, first, second, first])
        self.refused(tmp_path, data=[first, second, second, second, first])


def test_targets_of_any_strides_have_a_fingerprint():
    """NumPy gives a column of one number a stride of 0, which torch calls contiguous."""
    y = torch.from_numpy(np.ones(4)[:, None])
    assert fingerprint([], [y]) == fingerprint([], [torch.ones(4, 1, dtype=torch.float64)])
    assert fingerprint([], [y]) != fingerprint([], [torch.zeros(4, 1, dtype=torch.float64)])


class TestFiles:
    """The file of a chunk may be damaged in any way."""

    SIZES, run, calls, every_epoch = (
        TestCheckpoint.SIZES,
        TestCheckpoint.run,
        TestCheckpoint.calls,
        TestCheckpoint.every_epoch,
    )

    @pytest.fixture
    def stopped(self, tmp_path):
        with pytest.raises(Interrupted):
            self.run(tmp_path, chunk=5, on_epoch=self.calls([], 3))
        (path,) = tmp_path.iterdir()
        return path

    def refused(self, path, message):
        with pytest.raises(DamagedFile, match=message):
            self.run(path.parent, chunk=5)

    @pytest.mark.parametrize(
        "change",
        [{"epoch": 10**30}, {"epoch": 2.5}, {"chosen": [0]}, {"members": [9]}, {"steps": None}, {"counters": {}}],
    )
    def test_values_that_are_not_of_this_run(self, stopped, change):
        stored = read_tensors(stopped, "the checkpoint")
        write_tensors(stopped, stored.kind, stored.tensors, {**stored.hyperparameters, **change})
        self.refused(stopped, "^the checkpoint must be what this very run wrote, got ")

    @pytest.mark.parametrize("name", ["chunk/mean", "record/mean", "record/history/loss"])
    def test_tensors_of_other_shapes(self, stopped, name):
        stored = read_tensors(stopped, "the checkpoint")
        without = {key: value for key, value in stored.tensors.items() if key != name}
        for tensors in ({**without, name: stored.tensors[name][:1]}, without):
            write_tensors(stopped, stored.kind, tensors, stored.hyperparameters)
            self.refused(stopped, "^the checkpoint must be what this very run wrote, got ")

    def test_damage(self, stopped):
        content = bytearray(stopped.read_bytes())
        content[-5] ^= 1
        stopped.write_bytes(content)
        self.refused(stopped, "^the checkpoint must be as it was written, got another digest in ")
