"""What the precision is for: merging, pruning adapters, and sensitivity to single examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise, product
from typing import Any, TypeAlias

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import bayesadam as ba
from bayesadam.optim import half_cosine
from experiments.data import load
from experiments.framework import Context, Report, Unit
from experiments.mnist import LIKELIHOOD
from experiments.tables import Number, frame

TITLE = "What the precision is for"
SOURCE = "Daheim et al. 2023; Nickl et al. 2023"

Data: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets."""

SEEDS = 5
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "bayesadam": ("BayesAdam", {"lr": 0.005}),
    "ivon": ("IVON", {"lr": 0.3, "betas": [0.9, 0.999]}),
    "laplace": ("Adam, diagonal Laplace", {"lr": 0.003}),
}
"""Label, and options of the optimiser, which were not tuned."""
TRAINING = {"hidden": 100, "batch_size": 50, "epochs": 10, "base": 5000, "part": 1000, "validation": 1000, "test": 4000}
ANGLES = (-60.0, -30.0, 30.0, 60.0)
SCALES = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0]
"""Weights of the trainings, from which task arithmetic and merging choose on validation rows."""
FRACTIONS = [0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98]
RETRAINING = {"rows": 200, "left_out": 30, "hidden": 10, "noise_precision": 10.0, "prior_precision": 3.0}
SETS = ("libsvm/australian", "uci/concrete")
MERGED = {
    "base": "the base alone",
    "average": "weights averaged",
    "arithmetic": "task arithmetic, scale chosen",
    "product": "merged, base counted every time",
    "merged": "merged with `base=`",
    "merged-scaled": "merged with `base=`, weight chosen",
    "together": "trained on all parts",
}
POSTERIORS = {
    "full": "Laplace, full",
    "kron": "Laplace, Kronecker",
    "diagonal": "Laplace, diagonal",
    "bayesadam": "BayesAdam",
    "ivon": "IVON",
    "loss": "loss of the example",
    "gradient": "norm of its gradient",
}


def units() -> list[Unit]:
    """Return units of all parts, with the seeds last."""
    found = []
    for seed in range(SEEDS):
        for (method, (_, options)), kind in product(METHODS.items(), ("rotations", "classes")):
            config = {**TRAINING, "method": method, "options": options, "kind": kind, "scales": SCALES, "seed": seed}
            found.append(Unit(f"merge-{kind}-{method}-{seed}", config))
        for (method, (_, options)), rank in product(METHODS.items(), (0, 4)):
            config = {**TRAINING, "method": method, "options": options, "rank": rank, "fractions": FRACTIONS}
            found.append(Unit(f"prune-{rank}-{method}-{seed}", {**config, "seed": seed}))
        for name in SETS:
            key = f"sensitivity-{name.partition('/')[2]}-{seed}"
            found.append(Unit(key, {**RETRAINING, "data": name, "seed": seed}))
    return found


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Run the part that the key begins with."""
    parts = {"merge": merge, "prune": prune, "sensitivity": sensitivity}
    return parts[unit.key.partition("-")[0]](unit.config)


def turned(data: Data, angle: float = 0.0) -> Data:
    """Return images that are turned by an angle in degrees, and of half the width, as ``(n, 196)``; and labels."""
    x, y = data
    radians = torch.tensor(angle).deg2rad()
    turn = torch.tensor([[radians.cos(), -radians.sin(), 0.0], [radians.sin(), radians.cos(), 0.0]])
    images = x.view(-1, 1, 28, 28)
    places = nn.functional.affine_grid(turn.expand(len(x), 2, 3), list(images.shape), align_corners=False)
    return nn.functional.avg_pool2d(nn.functional.grid_sample(images, places, align_corners=False), 2).flatten(1), y


def taken(data: Data, rows: Tensor | slice) -> Data:
    """Return some rows."""
    return data[0][rows], data[1][rows]


def joined(parts: Sequence[Data]) -> Data:
    """Return the rows of all parts."""
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def fit(
    method: str,
    model: nn.Module,
    data: Data,
    config: Mapping[str, Any],
    likelihood: ba.likelihoods.Likelihood = LIKELIHOOD,
    prior: ba.DiagonalGaussian | None = None,
) -> ba.DiagonalGaussian:
    """Train the model, from the prior's mean if there is one, and return its posterior."""
    num_data, size = len(data[0]), config["batch_size"]
    steps, options = config["epochs"] * -(-num_data // size), dict(config["options"])
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    opt: Any
    if method == "laplace":
        if prior is not None:
            with prior.applied(model):
                start = deepcopy(model.state_dict())
            model.load_state_dict(start)
        opt = torch.optim.Adam([p for _, p in named], **options)
    else:
        options |= {"num_data": num_data, "seed": config["seed"]} | ({} if prior is None else {"prior": prior})
        if method == "bayesadam":
            opt = ba.BayesAdam(named, batch_size=size, total_steps=steps, max_memorised=None, **options)
        else:
            start = {} if prior is not None else {"initial_precision": 0.1 * num_data}
            opt = ba.IVON(named, **start, **options)
        opt.train()
    schedule = None if method == "bayesadam" else LambdaLR(opt, lambda step: half_cosine(min(step / steps, 1.0)))
    order = torch.Generator().manual_seed(config["seed"])
    for _ in range(config["epochs"]):
        for rows in torch.split(torch.randperm(num_data, generator=order), size):
            opt.zero_grad()
            x, y = taken(data, rows)
            loss = likelihood.nll(model(x), y)
            if method == "laplace":
                loss = loss + _penalty(named, prior) / num_data
            torch.autograd.backward(loss)
            opt.step()
            if schedule is not None:
                schedule.step()
    if method != "laplace":
        opt.eval()
        found = opt.posterior(model)
        assert isinstance(found, ba.DiagonalGaussian)
        return found
    fitted = ba.posthoc.LaplaceApproximation(model, data, likelihood=likelihood, structure="diagonal")
    found = fitted.posterior() if prior is None else fitted.posterior(prior=prior)
    assert isinstance(found, ba.DiagonalGaussian)
    return found


def _penalty(named: Sequence[tuple[str, Tensor]], prior: ba.DiagonalGaussian | None) -> Tensor:
    """Return the negative log density of the prior, by default a standard normal one, up to a constant."""
    if prior is None:
        return 0.5 * torch.stack([p.square().sum() for _, p in named]).sum()
    return 0.5 * torch.stack([((p - prior.mean[n]).square() / prior.variance[n]).sum() for n, p in named]).sum()


def network(config: Mapping[str, Any], inputs: int, outputs: int) -> nn.Sequential:
    """Create a network with one hidden layer."""
    torch.manual_seed(config["seed"])
    hidden = config["hidden"]
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def scores(model: nn.Module, q: ba.DiagonalGaussian, data: Data) -> dict[str, float]:
    """Return accuracy and NLL of the network at the posterior's mean."""
    found = ba.predict(model, q, data[0], likelihood=LIKELIHOOD, method="mean")
    assert isinstance(found, ba.predictive.ClassificationPredictive)
    return {"accuracy": ba.metrics.accuracy(found.probs, data[1]), "nll": ba.metrics.nll(found, data[1])}


def _split(config: Mapping[str, Any]) -> dict[str, Data]:
    """Return rows for the base, for validation and for parts, in an order of the seed; and test rows."""
    data = load("fashion-mnist")
    order = torch.randperm(len(data.x_train), generator=torch.Generator().manual_seed(config["seed"]))
    sizes = [config["base"], config["validation"]]
    groups = torch.split(order, [*sizes, len(order) - sum(sizes)])
    found = dict(zip(("base", "validation", "parts"), groups, strict=True))
    train, test = (data.x_train, data.y_train), (data.x_test, data.y_test)
    return {name: taken(train, rows) for name, rows in found.items()} | {"test": taken(test, slice(config["test"]))}


def merge(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return test scores on all parts together, the base's included, of networks that were fine-tuned apart."""
    split, size = _split(config), config["part"]
    rotated = config["kind"] == "rotations"
    if rotated:
        shares = [slice(i * size, (i + 1) * size) for i in range(len(ANGLES))]
        parts = [turned(taken(split["parts"], rows), angle) for rows, angle in zip(shares, ANGLES, strict=True)]
        of_base = turned(split["base"])
    else:
        pairs = [(split["parts"][1] // 2 == i).nonzero().flatten()[:size] for i in range(5)]
        parts = [turned(taken(split["parts"], rows)) for rows in pairs]
        of_base = turned(taken(split["base"], slice(config["base"] // 10)))
    views = (0.0, *ANGLES) if rotated else (0.0,)
    validation, test = (joined([turned(split[name], angle) for angle in views]) for name in ("validation", "test"))
    model = network(config, len(of_base[0][0]), 10)
    train = partial(fit, config["method"], model, config=config)
    base = train(of_base)
    tuned = [train(part, prior=base) for part in parts]
    together = train(joined(parts), prior=base)
    point = ba.DiagonalGaussian.point_mass(base.mean)
    count = len(tuned)

    def chosen(start: ba.DiagonalGaussian) -> tuple[float, ba.DiagonalGaussian]:
        tried = {scale: ba.merge(tuned, weights=[scale] * count, base=start) for scale in config["scales"]}
        best = min(tried, key=lambda scale: scores(model, tried[scale], validation)["nll"])
        return best, tried[best]

    scale, arithmetic = chosen(point)
    weight, scaled = chosen(base)
    found = {
        "base": base,
        "average": ba.merge(tuned, weights=[1 / count] * count, base=point),
        "arithmetic": arithmetic,
        "product": ba.merge(tuned),
        "merged": ba.merge(tuned, base=base),
        "merged-scaled": scaled,
        "together": together,
    }
    return {name: scores(model, q, test) for name, q in found.items()} | {"chosen": [scale, weight]}


class Adapted(nn.Module):
    """A frozen layer with a change of its weights that begins at 0, of a rank or, for rank 0, of any rank."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        inputs, outputs = layer.in_features, layer.out_features
        sizes = [inputs, rank, outputs] if rank else [inputs, outputs]
        layers = [nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)]
        nn.init.zeros_(layers[-1].weight)
        self.change = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer and of the change together."""
        outputs: Tensor = self.layer(x) + self.change(x)
        return outputs


def prune(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return test accuracies of a network for images that are turned, whose adapters are pruned by two rankings."""
    split, angle = _split(config), ANGLES[-1]
    of_base = turned(split["base"])
    model = network(config, len(of_base[0][0]), 10)
    fit("laplace", model, of_base, {**config, "options": METHODS["laplace"][1]})
    adapted = nn.Sequential(*(Adapted(m, config["rank"]) if isinstance(m, nn.Linear) else m for m in model))
    part = turned(taken(split["parts"], slice(config["part"])), angle)
    q = fit(config["method"], adapted, part, config)
    test = turned(split["test"], angle)
    curve = partial(ba.pruning_curve, adapted, q, test, likelihood=LIKELIHOOD, fractions=config["fractions"])
    return {by: curve(by=by, progress=False).scores["accuracy"] for by in ("signal_to_noise", "magnitude")}


def sensitivity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for examples that were left out one by one, the growth of their loss by retraining and as predicted."""
    data = load(config["data"], standardize=True)
    generator = torch.Generator().manual_seed(config["seed"])
    rows = torch.randperm(len(data.x_train), generator=generator)[: config["rows"]]
    binary = config["data"].startswith("libsvm")
    x, y = data.x_train[rows].double(), data.y_train[rows].double()
    y = y.view(-1, 1)
    likelihood: ba.likelihoods.Likelihood
    likelihood = ba.Bernoulli() if binary else ba.Gaussian(noise_precision=config["noise_precision"])
    model = network(config, x.shape[1], 1).double()
    model[1] = nn.Tanh()
    weights = torch.ones(len(x), dtype=torch.float64)
    optimum = _minimise(model, likelihood, x, y, weights, config)
    before = -likelihood.log_prob(model(x), y).detach()
    predicted: dict[str, Tensor] = {"loss": before}
    for structure in ("full", "kron", "diagonal"):
        fitted = ba.posthoc.LaplaceApproximation(model, (x, y), likelihood=likelihood, structure=structure)
        q = fitted.posterior(config["prior_precision"])
        predicted[structure] = ba.predictive.sensitivity(model, q, (x, y), likelihood=likelihood)
    same = ba.DiagonalGaussian(q.mean, {name: torch.ones_like(mean) for name, mean in q.mean.items()})
    predicted["gradient"] = ba.predictive.sensitivity(model, same, (x, y), likelihood=likelihood).sqrt()
    for method in ("bayesadam", "ivon"):
        options = {**METHODS[method][1], "prior_precision": config["prior_precision"], "temperature": 1.0}
        settings = {"batch_size": 20, "epochs": 100, "options": options, "seed": config["seed"]}
        other = deepcopy(model)
        q = fit(method, other, (x, y), settings, likelihood)
        predicted[method] = ba.predictive.sensitivity(other, q, (x, y), likelihood=likelihood)
    left_out, grown = range(min(config["left_out"], len(x))), []
    for row in left_out:
        model.load_state_dict(optimum)
        weights[row] = 0.0
        _minimise(model, likelihood, x, y, weights, config)
        weights[row] = 1.0
        grown.append((-likelihood.log_prob(model(x[row : row + 1]), y[row : row + 1]).detach() - before[row]).item())
    return {"retrained": grown} | {name: values[: len(grown)] for name, values in predicted.items()}


def _minimise(
    model: nn.Module,
    likelihood: ba.likelihoods.Likelihood,
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    config: Mapping[str, Any],
) -> dict[str, Tensor]:
    """Minimise the weighted sum of the losses, and the prior's, from the present weights; return the state."""
    options: dict[str, Any] = {"tolerance_grad": 1e-4, "tolerance_change": 0.0, "line_search_fn": "strong_wolfe"}
    opt = torch.optim.LBFGS(model.parameters(), max_iter=1000, history_size=100, **options)
    named = list(model.named_parameters())

    def closure() -> Tensor:
        opt.zero_grad()
        loss = config["prior_precision"] * _penalty(named, None) - weights @ likelihood.log_prob(model(x), y)
        torch.autograd.backward(loss)
        return loss

    opt.step(closure)  # type: ignore[no-untyped-call]
    return deepcopy(model.state_dict())


def report(results: Mapping[str, Any]) -> Report:
    """Return tables of each part."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for key, result in results.items():
        grouped.setdefault(key.rpartition("-")[0], []).append(result)
    tables: dict[str, pd.DataFrame] = {}
    for kind in ("rotations", "classes"):
        shown = [(label, grouped.get(f"merge-{kind}-{method}", [])) for method, (label, _) in METHODS.items()]
        rows: list[list[Any]] = []
        for name, text in MERGED.items():
            row: list[Any] = [text]
            for _, found in shown:
                accuracy, nll = ([one[name][score] for one in found] for score in ("accuracy", "nll"))
                row += [Number.of(accuracy, decimals=3), Number.of(nll, decimals=2)]
            rows.append(row)
        pairs = (("merged", "average"), ("merged", "arithmetic"), ("merged-scaled", "arithmetic"))
        for one, other in pairs:
            row = [f"{MERGED[one]}, less {MERGED[other]}"]
            for _, found in shown:
                for score, decimals in (("accuracy", 3), ("nll", 2)):
                    values = ([each[name][score] for each in found] for name in (one, other))
                    row.append(Number.less(*values, decimals=decimals))
            rows.append(row)
        header = [f"{label}: {score}" for label, _ in shown for score in ("accuracy", "NLL")]
        tables[f"Merging, {kind}: test accuracy and NLL on all parts"] = frame(["mean network", *header], rows)
    rows = []
    for rank, (method, (label, _)) in product((0, 4), METHODS.items()):
        found = grouped.get(f"prune-{rank}-{method}", [])
        for name in ("signal_to_noise", "magnitude", "difference"):
            row = [f"{'rank 4' if rank else 'full'}, {label}", name.replace("_", "-")]
            for place in range(len(FRACTIONS)):
                snr, size = ([one[by][place] for one in found] for by in ("signal_to_noise", "magnitude"))
                given = Number.less(snr, size, decimals=3) if name == "difference" else None
                row.append(given or Number.of(snr if name == "signal_to_noise" else size, decimals=3))
            rows.append(row)
    header = ["adapter", "pruned by", *(f"{share:.0%} gone" for share in FRACTIONS)]
    tables["Pruning adapters: test accuracy"] = frame(header, rows)
    lines: list[list[Any]] = [[label] for label in POSTERIORS.values()]
    lines.append([f"{POSTERIORS['full']}, less {POSTERIORS['loss']}"])
    for data in SETS:
        seeds = [pd.DataFrame(one) for one in grouped.get(f"sensitivity-{data.partition('/')[2]}", [])]
        for ranked in (False, True):
            correlations = [(one.rank() if ranked else one).corr()["retrained"] for one in seeds]
            cells = [Number.of([one[name] for one in correlations], decimals=2) for name in POSTERIORS]
            cells.append(Number.of([one["full"] - one["loss"] for one in correlations], decimals=2))
            for line, cell in zip(lines, cells, strict=True):
                line.append(cell)
        for line, name in zip(lines, [*POSTERIORS, "loss"], strict=True):
            shares = [one[name].sum() / one["retrained"].sum() for one in seeds]
            line.append(None if name in ("loss", "gradient") else Number.of(shares, decimals=2))
    scores_of = ("correlation", "of ranks", "sum, share of the retrained")
    header = ["predicted by", *(f"{data.partition('/')[2]}: {score}" for data in SETS for score in scores_of)]
    tables["Sensitivity: growth of the loss of examples that are left out"] = frame(header, lines)
    return Report(tables)
