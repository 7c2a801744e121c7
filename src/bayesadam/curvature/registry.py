"""Registry of the layers that have a closed form."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from bayesadam.curvature.layers import ConvForm, EmbeddingForm, Form, LinearForm
from bayesadam.curvature.norms import NormForm, by_instance, by_running_statistics
from bayesadam.modules.calls import computes_as

_LINEAR, _CONV, _EMBEDDING = LinearForm(), ConvForm(), EmbeddingForm()
_BATCH = NormForm(by_running_statistics, channels=True)
_INSTANCE = NormForm(by_instance, channels=True)
_FORMS: dict[type[nn.Module], Form] = {
    nn.Linear: _LINEAR,
    nn.Conv1d: _CONV,
    nn.Conv2d: _CONV,
    nn.Conv3d: _CONV,
    nn.Embedding: _EMBEDDING,
    nn.LayerNorm: NormForm(lambda m, x: F.layer_norm(x, m.normalized_shape, None, None, m.eps), channels=False),
    nn.RMSNorm: NormForm(lambda m, x: F.rms_norm(x, m.normalized_shape, None, m.eps), channels=False),
    nn.GroupNorm: NormForm(lambda m, x: F.group_norm(x, m.num_groups, None, None, m.eps), channels=True),
    **{cls: _BATCH for cls in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)},
    **{cls: _INSTANCE for cls in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)},
}
_CALLED = ("_conv_forward", "_apply_instance_norm")
"""Methods that the forward methods of these layers call."""


def form_of(module: nn.Module) -> Form | None:
    """The closed form of a module's own parameters; None if its forward method differs from that of its base class."""
    for cls, form in _FORMS.items():
        if computes_as(module, cls):
            names = {"weight"} if cls in (nn.Embedding, nn.RMSNorm) else {"weight", "bias"}
            same = all(getattr(type(module), name, None) is getattr(cls, name, None) for name in _CALLED)
            return form if same and set(module._parameters) == names else None
    return None
