"""Rows of the inputs, the rows of the outputs, and the passes into which they are divided."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import bayesadam as ba
from bayesadam.predictive.batches import PASS_ROWS, Rows, map_tensors
from posterior.kinds import around

GAUSSIAN = ba.Gaussian()


def predict(model, inputs, **options):
    return ba.predict(model, around(model), inputs, likelihood=GAUSSIAN, mc_samples=4, **options)


class Recurrent(nn.Module):
    """A number for every sequence, or for every step."""

    def __init__(self, *, batch_first=True, steps=False):
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = nn.GRU(3, 5, batch_first=batch_first)
        self.out = nn.Linear(5, 1)
        self.steps = steps
        self.seen = []

    def forward(self, x, weight=1.0):
        hidden, last = self.recurrent(x)
        self.seen.append(len(x) if isinstance(x, torch.Tensor) else int(x.batch_sizes[0]))
        return weight * self.out(hidden if self.steps else last[-1])


@pytest.fixture
def sequences():
    torch.manual_seed(1)
    return [torch.randn(length, 3) for length in (3, 7, 2, 5, 4, 6)]


def packed(sequences):
    return pack_sequence(sequences, enforce_sorted=False)


def test_inputs_without_tensors_have_any_number_of_rows():
    class Graphs(nn.Linear):
        def forward(self, graphs):
            return super().forward(torch.stack(graphs["nodes"]))

    graphs = {"graphs": {"nodes": [torch.ones(3), torch.zeros(3)]}}
    assert predict(Graphs(3, 1), graphs).mean.shape == (2, 1)


class TestPackedSequences:
    """Every sequence is a row."""

    @pytest.mark.parametrize("batch_size", [None, 1, 4])
    @pytest.mark.parametrize("method", ["monte_carlo", "linearized", "mean"])
    def test_alone_and_from_a_loader(self, sequences, method, batch_size):
        model = Recurrent()
        options = {"method": method, "batch_size": batch_size}
        expected = torch.cat([predict(model, x[None], method=method).means for x in sequences], dim=1)
        inputs = packed(sequences)
        for form in (
            inputs,
            (inputs,),
            {"x": inputs},
            [inputs],
            [(inputs, None)],
            [packed(sequences[:2]), packed(sequences[2:])],
        ):
            torch.testing.assert_close(predict(model, form, **options).means, expected, atol=1e-5, rtol=1e-5)

    def test_with_other_tensors(self, sequences):
        model, weight = Recurrent(), torch.arange(6.0).view(6, 1)
        expected = weight * predict(model, packed(sequences)).means
        for batch_size in (None, 4):
            found = predict(model, (packed(sequences), weight), batch_size=batch_size).means
            torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("structure", ["full", "last_layer"])
    def test_laplace(self, sequences, structure):
        model, y = Recurrent(), torch.randn(6, 1)
        options = {"likelihood": GAUSSIAN, "structure": structure, "prior_precision": 1.0}
        expected = ba.laplace(model, [(x[None], y[n : n + 1]) for n, x in enumerate(sequences)], **options)
        for data in ((packed(sequences), y), [(packed(sequences), y)]):
            for batch_size in (None, 4):
                found = ba.laplace(model, data, batch_size=batch_size, **options)
                torch.testing.assert_close(found.variance, expected.variance)

    def test_calibrate(self, sequences):
        held_out = (packed(sequences), torch.randn(6, 1))
        assert ba.calibrate(Recurrent(), held_out, likelihood=GAUSSIAN, train=held_out) is not None

    def test_values_alone_are_mapped(self, sequences):
        inputs = packed(sequences)
        found = map_tensors(inputs, torch.Tensor.double)
        assert found.data.dtype == torch.float64
        assert all(torch.equal(a, b) for a, b in zip(found[1:], inputs[1:], strict=True))

    def test_selected(self, sequences):
        numbers = torch.tensor([4, 0])
        found = Rows((packed(sequences), torch.arange(6))).select(numbers)
        expected = packed([sequences[n] for n in numbers])
        assert found.count == 2
        assert torch.equal(found.batch[1], numbers)
        assert all(torch.equal(a, b) for a, b in zip(found.batch[0], expected, strict=True))


class Seen(nn.Sequential):
    """A network that keeps the numbers of rows that it was called with."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.seen = []

    def forward(self, x):
        self.seen.append(len(x))
        return super().forward(x)


class TestPasses:
    """The number of rows in a pass by default."""

    @pytest.mark.parametrize("count", [PASS_ROWS, PASS_ROWS + 1, 1777])
    @pytest.mark.parametrize("method", ["monte_carlo", "mean"])
    def test_memory_is_bounded(self, method, count):
        model, x = Seen(nn.Linear(300, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(count, 300)
        expected = predict(model, x, method=method, batch_size=count)
        model.seen.clear()
        torch.testing.assert_close(predict(model, x, method=method).means, expected.means)
        passes = [rows for rows in model.seen if rows > 16]
        assert max(passes) <= PASS_ROWS
        assert min(passes) >= PASS_ROWS // 2

    @pytest.mark.parametrize("method", ["linearized", "moments"])
    def test_methods_without_samples(self, method):
        model, x = nn.Sequential(nn.Linear(300, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(777, 300)
        expected, found = (predict(model, x, method=method, batch_size=size) for size in (777, None))
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.covariance, expected.covariance)

    def test_narrow_rows_have_larger_passes(self):
        model = Seen(nn.Linear(2, 2), nn.Linear(2, 1))
        predict(model, torch.randn(32_768, 2))
        assert model.seen == [32_768] * 4
        model.seen.clear()
        predict(model, torch.randn(40_001, 2))
        assert model.seen == [16, 4] + [20_001, 20_000] * 4
        assert len(predict(model, torch.randn(0, 2)).mean) == 0

    def test_rows_that_depend_on_each_other_are_not_divided(self):
        model, x = Recurrent(batch_first=False, steps=True), torch.randn(1000, 70, 3)
        expected = predict(model, x, batch_size=1000).means
        model.seen.clear()
        assert torch.equal(predict(model, x).means, expected)
        assert model.seen == [16, 4] + [1000] * 4

    def test_models_for_one_number_of_rows(self):
        class Graph(nn.Linear):
            def forward(self, nodes):
                return torch.eye(600).roll(1, 0) @ super().forward(nodes)

        model, x = Graph(300, 1), torch.randn(600, 300)
        assert torch.equal(predict(model, x).means, predict(model, x, batch_size=600).means)

    def test_edges_of_a_graph(self):
        class Graph(nn.Linear):
            def forward(self, nodes, edges):
                found = super().forward(nodes)
                return found.index_add(0, edges[1], found[edges[0]])

        model, x = Graph(300, 1), torch.randn(600, 300)
        edges = torch.stack([torch.arange(200), torch.arange(200).roll(3)])
        with torch.no_grad():
            expected = model(x, edges)
        found = ba.predict(model, ba.ensemble([model]), (x, edges), likelihood=GAUSSIAN, mc_samples=1)
        assert torch.equal(found.mean, expected)


@pytest.mark.parametrize("method", ["monte_carlo", "linearized", "mean"])
def test_batches_are_not_kept(method):
    """Without the garbage collector, which would find them late: on a GPU they are copies."""
    model = nn.Linear(3, 1)
    alive = weakref.WeakSet()

    def loader():
        for _ in range(6):
            batch = torch.randn(4, 3)
            alive.add(batch)
            yield batch

    gc.collect()
    gc.disable()
    try:
        predict(model, loader(), method=method)
        assert len(alive) <= 1
    finally:
        gc.enable()
