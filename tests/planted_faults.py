"""Fifty faults that the tests must catch: what the power of the suite is measured by. Not collected by pytest.

    python tests/planted_faults.py               # every fault; a table in Markdown, and status 1 if one survives
    python tests/planted_faults.py 3 17          # these only
    python tests/planted_faults.py --clean       # the named tests without a fault: they must pass

Each fault is one changed line in a temporary copy of the tree, against which the tests named with it are run until the
first fails. Several change a number by one percent only. A text that is not found exactly once is an error: whoever
rewrites the line plants the fault anew. Results are in ``tests/planted_faults.md``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Fault(NamedTuple):
    """``old`` becomes ``new`` in a file of ``src/bayesadam``; ``tests`` are files or folders in ``tests``."""

    what: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = [
    Fault("six rounds of Philox", "functional/philox.py", "ROUNDS = 7", "ROUNDS = 6", "test_noise.py"),
    Fault(
        "variance of the noise 1% too large",
        "functional/philox.py",
        ".add_(2.0**-33).log_().mul_(-2.0).sqrt_()",
        ".add_(2.0**-33).log_().mul_(-2.02).sqrt_()",
        "test_noise.py",
    ),
    Fault(
        "radius and angle of the noise from one word",
        "functional/philox.py",
        "angle.copy_(second.bitwise_and_(_MASK))",
        "angle.copy_(first.bitwise_and_(_MASK))",
        "test_noise.py",
    ),
    Fault("a slice starts elsewhere", "noise.py", "(offset[axis] * inner, ", "(offset[axis], ", "test_noise.py"),
    Fault(
        "Vadam: prior's gradient left out of the momentum",
        "optim/vadam.py",
        'average(state["exp_avg"], with_prior(grad, mean, hp), hp.beta1)',
        'average(state["exp_avg"], grad, hp.beta1)',
        "optim/test_rules.py",
    ),
    Fault(
        "Vadam: prior counted twice in the precision",
        "optim/vadam.py",
        "(1.0 - start) * active_prior(hp)",
        "active_prior(hp)",
        "optim/test_rules.py",
    ),
    Fault(
        "IVON: clipped after the scaling of the step",
        "optim/ivon.py",
        "(hp.lr * scale) * step.clamp(-hp.clip_radius, hp.clip_radius)",
        "hp.lr * (scale * step).clamp(-hp.clip_radius, hp.clip_radius)",
        "optim/test_rules.py",
    ),
    Fault(
        "correction of the precision twice as large",
        "optim/newton.py",
        "(0.5 * rate * rate)",
        "(rate * rate)",
        "optim/test_rules.py",
    ),
    Fault(
        "largest rate of backtracking without the prior",
        "optim/newton.py",
        "torch.where(error <= 0, torch.inf, shifted / error)",
        "torch.where(error <= 0, torch.inf, hessian / error)",
        "optim/test_rules.py",
    ),
    Fault(
        "VOGN without the temperature",
        "optim/vogn.py",
        "tempered_average(hessian, curvature, hp)",
        "average(hessian, curvature, hp.beta2)",
        "optim/test_rules.py",
    ),
    Fault(
        "VON: backtracking corrects element-wise, too",
        "optim/von.py",
        'hp.correction == "elementwise"',
        "hp.correction is not None",
        "optim/test_rules.py optim/test_von.py",
    ),
    Fault(
        "weight of the initial precision decays without the temperature",
        "core/rule.py",
        "return hp.temperature * (1.0 - hp.beta2)",
        "return 1.0 - hp.beta2",
        "optim/test_rules.py",
    ),
    Fault(
        "samples of the posterior 0.5% too wide",
        "posterior/diagonal.py",
        "torch.addcmul(self.mean[name], draws[index], std[name], out=draws[index])",
        "torch.addcmul(self.mean[name], draws[index], std[name], value=1.005, out=draws[index])",
        "posterior/test_posterior.py",
    ),
    Fault(
        "total correlation subtracted",
        "posterior/low_rank.py",
        "self.marginal().kl_divergence(prior) + self._total_correlation()",
        "self.marginal().kl_divergence(prior) - self._total_correlation()",
        "posterior/test_contract.py",
    ),
    Fault(
        "divergence of matrices counts their diagonals twice",
        "functional/gaussian.py",
        "white[:, :-1].tril(-1)",
        "white[:, :-1].tril()",
        "posterior/test_dense.py",
    ),
    Fault(
        "rescaled densities by half of the factor",
        "predictive/result.py",
        "self.log_variances + 2.0 * scale.abs().log()",
        "self.log_variances + scale.abs().log()",
        "predictive/test_predictive.py",
    ),
    Fault(
        "mutual information from the first sample",
        "predictive/result.py",
        "(self.entropy - _entropy(self.log_probs).mean(0))",
        "(self.entropy - _entropy(self.log_probs)[0])",
        "predictive/test_predictive.py",
    ),
    Fault(
        "linearised: squares of a layer's variances",
        "predictive/covariance.py",
        "scaled = (grads * variance.sqrt().unsqueeze(1)).to(self.total.dtype)",
        "scaled = (grads * variance.unsqueeze(1)).to(self.total.dtype)",
        "predictive/test_linearized.py",
    ),
    Fault(
        "linearised: parts of a layer replace each other",
        "predictive/covariance.py",
        "self.projected[..., columns] += ",
        "self.projected[..., columns] = ",
        "predictive/test_linearized.py",
    ),
    Fault(
        "evidence without the prior in the determinant",
        "posthoc/evidence.py",
        "torch.log1p(eigenvalues / prior_precision)",
        "torch.log1p(eigenvalues)",
        "posthoc",
    ),
    Fault(
        "transposed factor of the softmax's Hessian",
        "functional/outputs.py",
        "probs.unsqueeze(-1) * roots.unsqueeze(-2)",
        "roots.unsqueeze(-1) * probs.unsqueeze(-2)",
        "posthoc",
    ),
    Fault(
        "Badam: modes shrunk without num_data",
        "posthoc/badam.py",
        "root / (root + prior_precision / num_data)",
        "root / (root + prior_precision)",
        "posthoc/test_badam.py",
    ),
    Fault(
        "gradient of the ReLU's variance 1% too small",
        "functional/moments/rectifier.py",
        "pull = (first * d_second).mul_(2.0)",
        "pull = (first * d_second).mul_(1.98)",
        "functional/test_moment_functions.py",
    ),
    Fault(
        "convolution: variance of the weights without that of the inputs",
        "functional/moments/linear.py",
        "mean.square() if variance is None else mean.square() + variance, weight_variance, bias_variance)\n"
        "    if variance",
        "mean.square(), weight_variance, bias_variance)\n    if variance",
        "moments/test_linear.py",
    ),
    Fault(
        "dropout: variance of the mask before its scaling",
        "functional/moments/noise.py",
        "multiply(mean, variance, 1.0, p / (1.0 - p))",
        "multiply(mean, variance, 1.0, p)",
        "functional/test_moment_functions.py",
    ),
    Fault(
        "local reparameterisation with absolute inputs",
        "bayes_by_backprop/estimators.py",
        "call(x.to(dtype).square(), variance, of_bias)",
        "call(x.to(dtype).abs(), variance, of_bias)",
        "bayes_by_backprop/test_estimators.py",
    ),
    Fault(
        "gradient of the scale mixture 1% off",
        "functional/kl.py",
        "sub_(narrow**-2).mul_(value)",
        "sub_(narrow**-2).mul_(0.99 * value)",
        "test_priors.py bayes_by_backprop/test_gradients.py",
    ),
    Fault(
        "early stopping an epoch late",
        "population/record.py",
        "late = epoch - self._best_epoch[index] >= self._patience",
        "late = epoch - self._best_epoch[index] > self._patience",
        "population/test_training.py",
    ),
    Fault(
        "a last, smaller minibatch averaged as a whole one",
        "population/batches.py",
        "mask / sizes[:, None]",
        "mask / width",
        "population/test_training.py population/test_members.py",
    ),
    Fault(
        "Bayes by Backprop in a population: entropy without the temperature",
        "optim/bbb.py",
        " - share * (slope / sigma)",
        " - (slope / sigma) / hp.num_data",
        "population/test_variational.py",
    ),
    Fault(
        "one conformal score too few",
        "sklearn/conformal.py",
        "math.ceil((rows + 1) * coverage - ROUNDING)",
        "math.ceil(rows * coverage - ROUNDING)",
        "estimators/test_conformal.py",
    ),
    Fault(
        "an earlier calibration forgotten with few rows",
        "sklearn/calibration.py",
        "KNOWN / (KNOWN + rows)",
        "rows / (KNOWN + rows)",
        "estimators/test_calibration.py estimators/test_regressor.py",
    ),
    Fault(
        "standardised by the divisor n",
        "../../experiments/data/dataset.py",
        "x.std(0)",
        "x.std(0, correction=0)",
        "experiments/test_data.py",
    ),
    Fault(
        "rows with an unknown value are kept",
        "../../experiments/data/parsers.py",
        "pd.read_csv(path, **read).dropna()",
        'pd.read_csv(path, **read).dropna(how="all")',
        "experiments/test_data.py",
    ),
    Fault(
        "rows at the border's time are trained on",
        "sklearn/tables/splits.py",
        "        codes >= border, f",
        "        codes > border, f",
        "tables/test_splits.py",
    ),
    Fault(
        "new levels of a column as missing values",
        "sklearn/tables/column_types.py",
        "            matrix[new, len(self.levels)] = True",
        "            matrix[new, -1] = True",
        "tables/test_encoder.py",
    ),
    Fault(
        "compiled noise 1% too wide",
        "native/normal.h",
        "const float r1 = sign * __builtin_sqrtf(-2.0f *",
        "const float r1 = sign * __builtin_sqrtf(-2.04f *",
        "test_noise.py",
    ),
    Fault(
        "the next sample has the noise of this one",
        "core/update.py",
        '"next_eps": self.weights.draw(0, ahead=1)',
        '"next_eps": self.weights.draw(0)',
        "optim/test_contract_training.py",
    ),
    Fault(
        "a step that was interrupted is not completed",
        "core/engine.py",
        "        with postponed_interrupt():\n            self.updates.make(drop_in, ready)",
        "        if True:\n            self.updates.make(drop_in, ready)",
        "optim/test_interrupts.py",
    ),
    Fault(
        "kept curvature is not rescaled by what clipping did to the gradient",
        "core/collect.py",
        "ratios.get(parameter, 1.0) ** self.layout.rule.power",
        "1.0",
        "optim/test_contract_gradients.py optim/test_contract_blocks.py",
    ),
    Fault(
        "Student's t: Fisher information with the wrong denominator",
        "likelihoods/student_t.py",
        "((degrees + 1.0) / (degrees + 3.0)).sqrt()",
        "((degrees + 1.0) / (degrees + 2.0)).sqrt()",
        "likelihoods",
    ),
    Fault(
        "log-normal: expected density of the logarithm",
        "likelihoods/positive.py",
        "terms = gaussian_log_density(log_target - mean, log_variance) - log_target",
        "terms = gaussian_log_density(log_target - mean, log_variance)",
        "likelihoods",
    ),
    Fault(
        "variance of the samples of a stratum with the divisor S",
        "predictive/base.py",
        "*values.shape[1:]).var(0).mean(0)",
        "*values.shape[1:]).var(0, correction=0).mean(0)",
        "predictive",
    ),
    Fault(
        "batch norm statistics of the last batch only",
        "predictive/batch_norm.py",
        "layer.momentum, layer.training = None, True",
        "layer.momentum, layer.training = 1.0, True",
        "predictive/test_batch_norm.py",
    ),
    Fault(
        "a Gaussian process predicts left-out rows with the kernel of their own folds",
        "sklearn/process.py",
        "_kernel(rows[half], targets[half])",
        "_kernel(rows[~half], targets[~half])",
        "estimators/test_companions.py",
    ),
    Fault(
        "CRPS of a Gaussian 0.5% off in one term",
        "metrics.py",
        "(2.0 * density - 1.0 / math.sqrt(math.pi))",
        "(2.0 * density - 1.005 / math.sqrt(math.pi))",
        "test_metrics.py",
    ),
    Fault(
        "SWAG: deviations divided by K",
        "swag.py",
        "(scale / (len(self._deviations) - 1)) ** 0.5",
        "(scale / len(self._deviations)) ** 0.5",
        "test_swag.py",
    ),
    Fault(
        "merged mean ignores the weights",
        "posterior/merging.py",
        "center = center + share * mean.double()",
        "center = center + share / exponent * mean.double()",
        "posterior",
    ),
    Fault(
        "temperature of a tempered likelihood replaces the earlier one",
        "likelihoods/classification.py",
        "return TemperedClassification(self.base, temperature * float(self.temperature))",
        "return TemperedClassification(self.base, temperature)",
        "likelihoods calibration",
    ),
    Fault(
        "Laplace: scale of the curvature left out of the full precision",
        "posthoc/prior.py",
        "    precision = scale * curvature\n",
        "    precision = 1.0 * curvature\n",
        "posthoc",
    ),
]


def pytest(tree: Path, tests: list[str]) -> tuple[bool, str, float]:
    """Whether tests fail in a tree, the first that does, and seconds."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, *(f"tests/{name}" for name in tests)], cwd=tree, env=environment, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):  # 1: a test failed; others: pytest did not run as it should
        raise SystemExit(f"the tests {tests} could not be run:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return done.returncode == 1, failed[1] if failed else "", time.monotonic() - began


def plant(tree: Path, fault: Fault) -> None:
    """Change the file in the tree."""
    path = tree / "src" / "bayesadam" / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise SystemExit(
            f"{fault.file} must have the text of {fault.what!r} once, got it {text.count(fault.old)} times"
        )
    path.write_text(text.replace(fault.old, fault.new))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, help="of the faults, from 1; default: all")
    parser.add_argument("--clean", action="store_true", help="run the named tests without a fault")
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose tests are tried; default: this one")
    options = parser.parse_args()
    chosen = options.numbers or range(1, len(FAULTS) + 1)
    survived = 0
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(options.tree, tree, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        if options.clean:
            names = sorted({name for number in chosen for name in FAULTS[number - 1].tests.split()})
            failed, first, seconds = pytest(tree, names)
            print(f"without a fault: {first if failed else 'all pass'}, {seconds:.0f} s")
            raise SystemExit(failed)
        for number in chosen:  # a text that is gone is found before many minutes of tests
            plant_in = FAULTS[number - 1]
            path = tree / "src" / "bayesadam" / plant_in.file
            original = path.read_text()
            plant(tree, plant_in)
            path.write_text(original)
        print("| | fault | file | first test that fails | seconds |\n|---:|---|---|---|---:|", flush=True)
        for number in chosen:
            fault = FAULTS[number - 1]
            path = tree / "src" / "bayesadam" / fault.file
            original = path.read_text()
            plant(tree, fault)
            caught, first, seconds = pytest(tree, fault.tests.split())
            path.write_text(original)
            survived += not caught
            found = f"`{first}`" if caught else "**survives**"
            print(f"| {number} | {fault.what} | `{fault.file}` | {found} | {seconds:.0f} |", flush=True)
    print(f"\n{len(list(chosen)) - survived} of {len(list(chosen))} caught")
    raise SystemExit(survived > 0)


if __name__ == "__main__":
    main()
