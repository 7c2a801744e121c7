"""Ensembles that are trained together: their members are those of a training in turn, and what cannot be stacked."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, generator=GENERATOR)
IMAGES = torch.randn(40, 1, 8, 8, generator=GENERATOR)
TOKENS = torch.randint(0, 10, (40, 5), generator=GENERATOR)
Y = (X.sum(1) > 0).long()


def perceptron():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def dropped():
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 2))


def convolutional():
    first = [
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.2),
    ]
    return nn.Sequential(*first, nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


def recurrent():
    return nn.Sequential(nn.Unflatten(1, (3, 2)), Last(), nn.Linear(4, 2))


class Last(nn.Module):
    """The last state of a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(2, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0][:, -1]


class Transformer(nn.Module):
    """A layer of attention with dropout in all places, and a parameter that is not used."""

    def __init__(self):
        super().__init__()
        self.tokens, self.unused = nn.Embedding(10, 8, padding_idx=0), nn.Parameter(torch.ones(3))
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.layer(self.tokens(x).transpose(0, 1).contiguous()).mean(0))


class Focal(ba.Categorical):
    """A likelihood with a loss of its own, which is no mean over the data points."""

    def nll(self, output, target):
        losses = -self.log_prob(output, target)
        return (losses.exp() * losses).sum() / losses.exp().sum()


def ensemble(make=perceptron, data=(X, Y), **options):
    options = {"likelihood": ba.Categorical(), "epochs": 3, "batch_size": 16, "members": 3, "lr": 0.01, **options}
    return ba.train_ensemble(make, data, progress=False, **options)


def assert_same(ours, theirs, *, rtol=1e-4, atol=1e-6):
    for one, other in zip(ours.components, theirs.components, strict=True):
        for name, mean in other.mean.items():
            torch.testing.assert_close(one.mean[name], mean, rtol=rtol, atol=atol)
            torch.testing.assert_close(one.variance[name], other.variance[name], rtol=rtol, atol=atol)
        for name, buffer in other.buffers.items():
            torch.testing.assert_close(one.buffers[name], buffer, rtol=rtol, atol=atol)


CASES = {
    "perceptron": (perceptron, (X, Y), {}),
    "adam": (perceptron, (X, Y), {"method": "adam"}),
    "a gate of all parameters": (perceptron, (X, Y), {"options": {"nonfinite": "skip"}}),
    "own loss": (perceptron, (X, Y), {"likelihood": Focal()}),
    "loss without a likelihood": (perceptron, (X, Y), {"likelihood": None, "loss": nn.functional.cross_entropy}),
    "ignored targets": (perceptron, (X, Y.where(X[:, 0] > -0.5, -100)), {}),
    "dropout": (dropped, (X, Y), {"method": "ivon"}),
    "convolutions with batch norm": (convolutional, (IMAGES, Y), {"method": "vadam"}),
    "transformer": (Transformer, (TOKENS, Y), {"method": "vadam"}),
    "loader": (perceptron, DataLoader(TensorDataset(X, Y), 16, shuffle=True), {"batch_size": None}),
    "loader of images": (convolutional, DataLoader(TensorDataset(IMAGES, Y), 16, shuffle=True), {"method": "vadam"}),
}


@pytest.mark.parametrize("case", CASES)
def test_members_are_those_in_turn(case):
    make, data, options = CASES[case]
    together, in_turn = (ensemble(make, data, together=how, **options) for how in (True, False))
    assert together.hyperparameters["trained"] == "together"
    assert in_turn.hyperparameters["trained"] == "in turn: as asked"
    assert_same(together, in_turn)
    first, second = together.components[:2]
    assert not any(torch.equal(mean, second.mean[name]) for name, mean in first.mean.items() if name != "unused")


def test_convolutions_on_a_cpu_are_faster_in_turn():
    q = ensemble(convolutional, (IMAGES, Y))
    assert q.hyperparameters["trained"] == "in turn: on a CPU such networks are faster so"


def test_one_pass_finds_out_how_to_train():
    """Data points, operations and the order of memory: a convolutional network has no further pass but its steps'."""

    def make():
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 1))
        model.register_forward_hook(lambda *call: passes.append(len(call[1][0])))
        return model

    passes = []
    ensemble(make, (IMAGES, X[:, :1]), likelihood=ba.Gaussian(1.0), epochs=1, members=2)
    assert passes == [16] + 2 * [16] + 2 * [16] + 2 * [8]


def test_a_network_that_keeps_its_activations():
    """The pass before the first step leaves nothing in the networks that could not be copied."""

    class Kept(nn.Linear):
        def forward(self, x):
            self.activations = super().forward(x)
            return self.activations

    def make():
        return nn.Sequential(Kept(6, 8), nn.ReLU(), nn.Linear(8, 2))

    q = ensemble(make)
    assert q.hyperparameters["trained"] == "together"
    assert_same(q, ensemble(make, together=False))


def test_a_network_that_reads_images_in_order():
    class View(nn.Module):
        def forward(self, x):
            return x.view(len(x), -1)

    def make():
        return nn.Sequential(nn.Conv2d(1, 4, 3), View(), nn.Linear(144, 2))

    q = ensemble(make, (IMAGES, Y))
    assert_same(ensemble(make, (IMAGES, Y), together=True), q)


def test_what_cannot_be_stacked_is_trained_in_turn():
    with pytest.warns(UserWarning, match="^the members of the ensemble are trained in turn: .*gru"):
        q = ensemble(recurrent)
    assert q.hyperparameters["trained"].startswith("in turn: ")
    assert_same(q, ensemble(recurrent, together=False), rtol=0, atol=0)
    widths = itertools.count(3)

    def other():
        return nn.Sequential(nn.Linear(6, width := next(widths)), nn.Linear(width, 2))

    with pytest.raises(ValueError, match="^together must be None or False for .* the networks have different"):
        ensemble(other, together=True)


class Wrong(torch.autograd.Function):
    """The identity with a gradient that is another one under ``vmap``."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def backward(context, grad):
        return grad

    @staticmethod
    def vmap(info, dims, x):
        return 2 * x, dims[0]


def test_other_numbers_under_vmap_are_noticed():
    class Layer(nn.Module):
        def forward(self, x):
            return Wrong.apply(x)

    with pytest.warns(UserWarning, match="in turn: torch.func.vmap computes other gradients$"):
        ensemble(lambda: nn.Sequential(nn.Linear(6, 4), Layer(), nn.Linear(4, 2)))


@pytest.mark.parametrize(("make", "together"), [(dropped, True), (dropped, False), (perceptron, True)])
def test_a_checkpoint_resumes_to_the_same_numbers(make, together, tmp_path):
    path = tmp_path / "ensemble.pt"
    expected = ensemble(make, together=together)
    calls = itertools.count()

    def stopping(output, target):
        if next(calls) == (18 if together else 15):  # in the second or third epoch
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(output, target)

    with pytest.raises(KeyboardInterrupt):
        ensemble(make, together=together, checkpoint=path, likelihood=None, loss=stopping)
    assert path.exists()
    assert_same(ensemble(make, together=together, checkpoint=path), expected, rtol=1e-6, atol=1e-8)
    assert_same(ensemble(make, together=together, checkpoint=path), expected, rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="^checkpoint must be of this training, .*'seed': 7.*, got one of .*'seed': 0"):
        ensemble(make, seed=7, checkpoint=path)


@pytest.mark.parametrize("method", ["bayesadam", "adam"])
def test_writing_a_checkpoint_changes_no_number(method, tmp_path):
    assert_same(ensemble(method=method), ensemble(method=method, checkpoint=tmp_path / "e.pt"), rtol=0, atol=0)


def test_refusals():
    with pytest.raises(ValueError, match="^likelihood must be given, or loss in its place, got None and None$"):
        ensemble(likelihood=None)
    with pytest.raises(ValueError, match="^batch_size must be a whole number of at least 1, got None$"):
        ensemble(batch_size=None)
    with pytest.raises(ValueError, match="^data must be as many inputs as targets"):
        ensemble(data=DataLoader(list(zip(X, Y, strict=True)), 16, collate_fn=lambda rows: (X, Y[:3])))
