"""The padding rows of embeddings, which PyTorch never trains: samples of the weights leave them as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor, nn


def padding_rows(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Number of the padding row of each of the model's tensors that is the weight of an embedding with such a row.

    A weight that another module has as well, such as an output layer, is trained there and not included.

    Args:
        model: The network.
        tensors: Tensors of the network, by the names that are used in the result.
    """
    owners = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    rows = {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and owners[id(module.weight)] == 1
    }
    return {name: rows[id(tensor)] for name, tensor in tensors.items() if id(tensor) in rows}
