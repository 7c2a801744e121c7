"""Digits: accuracy against confidence, and the entropy on digits that were never seen; Adam beside BayesAdam."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import bayesadam as ba
from bayesadam import plots

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
torch.manual_seed(0)
known = torch.where(y < 8)[0][torch.randperm(int((y < 8).sum()))]
train, test, foreign = known[:400], known[400:], torch.where(y >= 8)[0]
likelihood = ba.Categorical()


def fit(method):
    """A network and its posterior; Adam's is the point that it found."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    if method == "Adam":
        opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    else:
        opt = ba.BayesAdam(model.named_parameters(), num_data=400, batch_size=40, total_steps=250)
        opt.train()
    for _ in range(25):
        for rows in train[torch.randperm(len(train))].split(40):
            opt.zero_grad()
            likelihood.nll(model(x[rows]), y[rows]).backward()
            opt.step()
    if method == "Adam":
        return model, ba.DiagonalGaussian.point_mass(model)
    opt.eval()
    return model, opt.posterior()


figure, panels = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
curves = {}
for axes, method in zip(panels[1:], ("Adam", "BayesAdam"), strict=True):
    model, q = fit(method)
    inside, outside = (ba.predict(model, q, x[rows], likelihood=likelihood) for rows in (test, foreign))
    curves[method] = inside.probs, y[test]
    auroc = ba.metrics.ood_auroc(inside.entropy, outside.entropy)
    plots.entropy_histogram(axes, {"digits 0 to 7": inside.entropy, "8 and 9, unseen": outside.entropy}, classes=8)
    axes.set(title=f"{method}: AUROC {auroc:.2f}")
    axes.legend(fontsize=8)
plots.reliability(panels[0], curves)
panels[0].set(title="calibration")
panels[0].legend(fontsize=7, markerscale=0.5, loc="lower right")
folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
figure.savefig(folder / "calibration.png", dpi=90)
