"""Curvatures that are summed during backward passes; the diagonal, from squared gradients of examples."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from bayesadam.curvature import PerExampleSquares
from bayesadam.modules.calls import call
from bayesadam.modules.reentrant import RefusingReentrant
from bayesadam.posthoc.trained_network import Hessians, TrainedNetwork
from bayesadam.predictive.batches import Rows


class BackwardSum:
    """A sum over the data by one backward pass for each column of the factor of ``H``.

    Until it is closed, the parameters have no ``.grad``, which ``squares`` would take for one of these passes.

    Args:
        network: The network.
        squares: What follows these passes.
    """

    def __init__(self, network: TrainedNetwork, squares: PerExampleSquares) -> None:
        self.network = network
        self.squares = squares
        self.squares.start()
        self._gradients = [(parameter, parameter.grad) for parameter in network.model.parameters()]
        for parameter, _ in self._gradients:
            parameter.grad = None

    def add(self, rows: Rows, target: Tensor) -> Hessians:
        """Add a batch and return the Hessians at its outputs."""
        with torch.enable_grad():
            with RefusingReentrant(self.network.trainable.values()):
                output = call(self.network.model, rows.batch, self.network.output)
            hessians = Hessians(self.network, output, target)
            parts = hessians.parts(rows, by_columns=True)
            for part in parts:
                self.add(*part)
            if not parts:
                self._announce(output, hessians)
                vectors, count = hessians.columns()
                self.squares.backward_each(output, vectors, count)
        return hessians

    def _announce(self, output: Tensor, hessians: Hessians) -> None:
        """Prepare the backward passes of a batch."""

    def diagonal(self, but: Collection[str | None] = ()) -> dict[str, Tensor]:
        """The sum of squares by name, 0 where the outputs do not depend on a weight; copies in float32 or wider."""
        sums = {}
        for name, parameter in self.network.trainable.items():
            if name not in but:
                mean = self.squares.mean_squares(parameter)
                sums[name] = torch.zeros_like(parameter) if mean is None else mean * self.squares.num_examples
        return sums

    def close(self) -> None:
        """Remove the hooks from the model, and put its gradients back."""
        self.squares.stop()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


class DiagonalSum(BackwardSum):
    """``sum_n diag(J_n' H_n J_n)``.

    Gradients are squared by :class:`PerExampleSquares`, so no tensor has the size of examples times weights.
    """

    def __init__(self, network: TrainedNetwork) -> None:
        super().__init__(network, PerExampleSquares(network.model, reduction="sum"))

    def result(self) -> dict[str, Tensor]:
        """The sum by name; see :meth:`diagonal`."""
        return self.diagonal()
