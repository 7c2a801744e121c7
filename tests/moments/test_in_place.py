"""Operations in place: later uses of what they change are of the changed value, as in the network."""

import pytest
from torch import nn
from torch.nn import functional as F

from moments.networks import linear, make, run, same
from moments.references import close, draw


def iadd(self, x):
    h = kept = self.a(x)
    h += self.b(x)
    return self.c(kept)


def input_and_uses_in_between(self, x):
    """The result is used before and after the value that was changed."""
    z = self.relu(x)
    first = self.a(z)
    return self.c(first + self.b(x)) + self.a(z)


def shape_afterwards(self, x):
    h = self.a(x)
    flat = h.view(-1, 2, 2)
    flat += 1.0
    return flat.view(h.shape)


NETWORKS = {
    "module": (lambda self, x: self.residual(self.relu, x), lambda self, x: self.apart(F.relu, x)),
    "by position": (
        lambda self, x: self.residual(lambda h: F.relu(h, True), x),
        lambda self, x: self.apart(F.relu, x),
    ),
    "iadd": (iadd, lambda self, x: self.c(self.a(x) + self.b(x))),
    "uses in between": (
        input_and_uses_in_between,
        lambda self, x: self.c(self.a(x.relu()) + self.b(x.relu())) + self.a(x.relu()),
    ),
    "shape afterwards": (shape_afterwards, lambda self, x: self.a(x) + 1.0),
}


def network(function):
    model = make(
        function,
        a=linear(4, 4),
        b=linear(4, 4, seed=1),
        c=linear(4, 4, seed=2),
        relu=nn.ReLU(inplace=True),
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


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_changed_in_place(name):
    function, without = NETWORKS[name]
    model, x = network(function), draw(5, 4)
    close(run(model, x, weights={}).mean, model(x.clone()))
    same(run(model, x), run(network(without), x))
