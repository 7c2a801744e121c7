"""Operations in place: later uses of what they change are of the changed value, as in the network."""

import pytest
from torch import nn
from torch.nn import functional as F

import bayesadam as ba
from moments.references import close, draw
from moments.test_graph import linear, make, run, same


def iadd(self, x):
    h = kept = self.a(x)
    h += self.b(x)
    return self.c(kept)


def operators(self, x):
    h = kept = self.a(x)
    h *= 2.0
    h -= self.b(x)
    h /= 3.0
    return self.b(h.relu()) + kept


def operators_apart(self, x):
    h = (self.a(x) * 2.0 - self.b(x)) / 3.0
    return self.b(h.relu()) + h


def relus(self, x):
    h = self.a(x)
    z = self.relu(h)
    F.leaky_relu(z, 0.1, True)
    return self.c(self.b(z) + h)


def input_and_uses_in_between(self, x):
    """The result is used before and after the value that was changed."""
    z = self.relu(x)
    first = self.a(z)
    return self.c(first + self.b(x)) + self.a(z)


def counts(self, x):
    size = kept = x.shape[0]
    size += 1
    return self.a(x).view(kept, size - kept, 4).flatten(1)


def shape_afterwards(self, x):
    h = self.a(x)
    flat = h.view(-1, 2, 2)
    flat += 1.0
    return flat.view(h.shape)


NETWORKS = {
    "module": (lambda self, x: self.residual(self.relu, x), lambda self, x: self.apart(F.relu, x)),
    "function": (
        lambda self, x: self.residual(lambda h: F.silu(h, inplace=True), x),
        lambda self, x: self.apart(F.silu, x),
    ),
    "by position": (
        lambda self, x: self.residual(lambda h: F.relu(h, True), x),
        lambda self, x: self.apart(F.relu, x),
    ),
    "not in place": (
        lambda self, x: self.residual(F.relu, x),
        lambda self, x: self.c(self.b(F.relu(self.a(x))) + self.a(x)),
    ),
    "iadd": (iadd, lambda self, x: self.c(self.a(x) + self.b(x))),
    "operators": (operators, operators_apart),
    "twice": (relus, lambda self, x: self.apart(lambda h: F.leaky_relu(F.relu(h), 0.1), x)),
    "uses in between": (
        input_and_uses_in_between,
        lambda self, x: self.c(self.a(x.relu()) + self.b(x.relu())) + self.a(x.relu()),
    ),
    "counts": (counts, lambda self, x: self.a(x)),
    "shape afterwards": (shape_afterwards, lambda self, x: self.a(x) + 1.0),
}


def network(function):
    model = make(
        function,
        a=linear(4, 4),
        b=linear(4, 4, seed=1),
        c=linear(4, 4, seed=2),
        relu=nn.ReLU(inplace=True),
        drop=nn.Dropout(0.1),
        same=nn.Identity(),
    )

    def residual(change, x):
        h = model.a(x)
        z = change(h)
        return model.c(model.b(z) + h)

    def apart(change, x):
        h = change(model.a(x))
        return model.c(model.b(h) + h)

    model.residual, model.apart = residual, apart
    return model.eval()


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "not in place"])
def test_what_is_changed_in_place(name):
    function, without = NETWORKS[name]
    model, x = network(function), draw(5, 4)
    close(run(model, x, weights={}).mean, model(x.clone()))
    same(run(model, x), run(network(without), x))


def test_what_is_not_changed_stays():
    model, x = network(NETWORKS["not in place"][0]), draw(5, 4)
    close(run(model, x, weights={}).mean, model(x))


@pytest.mark.parametrize("inplace", [True, False])
def test_fawn_and_predictions(inplace):
    model, x = network(lambda self, x: self.residual(lambda h: F.relu(h, inplace=inplace), x)), draw(5, 4)
    close(ba.fawn(model, initial_std=1e-9)(x).mean, model(x), rtol=1e-6, atol=1e-6)
    q, gaussian = ba.DiagonalGaussian.point_mass(model), ba.Gaussian(1.0).double()
    close(ba.predict(model, q, x, likelihood=gaussian, method="moments").mean, model(x))


def view_of_what_changes(self, x):
    h = self.a(x)
    part = h[:, :2]
    h += self.b(x)
    return part


def what_a_view_changes(self, x):
    h = self.a(x)
    self.relu(h.view(-1, 2, 2))
    return self.c(h)


def another_view(self, x):
    h = self.same(self.a(x))
    F.relu(self.drop(h.unsqueeze(1)), inplace=True)
    return self.c(h.reshape(-1, 4))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (view_of_what_changes, "'getitem', which may share memory with 'a', which 'iadd' changes in place$"),
        (what_a_view_changes, "'a', which may share memory with 'view', which 'relu' changes in place$"),
        (another_view, "'same', which may share memory with 'drop', which 'relu' changes in place$"),
    ],
)
def test_shared_memory_is_refused(function, message):
    model = network(function)
    with pytest.raises(ValueError, match=r"\(else use 'monte_carlo'\), got a later use of the value " + message):
        ba.fawn(model)


@pytest.mark.parametrize("name", ["iadd", "imul", "isub"])
def test_combinations_with_itself_are_refused(name):
    def forward(self, x):
        h = self.a(x)
        other = F.relu(h)
        if name == "iadd":
            h += other
        elif name == "imul":
            h *= other
        else:
            h -= other
        return h

    with pytest.raises(ValueError, match=f"got the function '{name}' of a random value and itself"):
        run(network(forward), draw(5, 4))
