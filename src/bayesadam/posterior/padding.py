"""The padding rows of embeddings, which PyTorch never trains: samples of the weights leave them as they are."""

from __future__ import annotations

from collections import Counter

from torch import nn


def padding_rows(model: nn.Module) -> dict[int, int]:
    """Number of the padding row of every embedding that has one, by the ``id`` of its weight.

    A weight that another module has as well, such as an output layer, is trained there and not included.
    """
    owners = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    return {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and owners[id(module.weight)] == 1
    }
