"""The padding rows of embeddings, which PyTorch never trains: samples of the weights leave them as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from bayesadam.modules.exclusive import Parts


def padding_rows(parts: Parts, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Number of the padding row of each of a model's tensors that is the weight of an embedding with such a row.

    A weight that another module has as well, such as an output layer, is trained there and not included.

    Args:
        parts: The parts of the network.
        tensors: Tensors of the network, by the names that are used in the result.
    """
    owners = Counter(id(parameter) for module in parts.modules for parameter in module._parameters.values())
    rows = {id(m.weight): m.padding_idx for m in parts.padded if owners[id(m.weight)] == 1}
    return {name: row for name, tensor in tensors.items() if (row := rows.get(id(tensor))) is not None}
