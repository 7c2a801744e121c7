"""The error for what moments cannot be propagated through, and replacements for such layers."""

from __future__ import annotations

from torch import nn

SAMPLING = "bayesadam.variational(model), which samples the weights of any module"

_REPLACEMENTS: dict[tuple[type[nn.Module], ...], str] = {
    (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d): "logits, without it: bayesadam.Categorical() takes these",
    (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout): "nn.Dropout",
    (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d): (
        "a batch norm layer in eval mode, or " + SAMPLING
    ),
    (nn.AdaptiveMaxPool1d,): "nn.MaxPool1d",
    (nn.AdaptiveMaxPool2d, nn.FractionalMaxPool2d, nn.LPPool2d): "nn.MaxPool2d",
    (nn.AdaptiveMaxPool3d, nn.FractionalMaxPool3d): "nn.MaxPool3d",
    (nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.LPPool1d): "nn.AvgPool2d over inputs with an axis of length 1",
    (nn.EmbeddingBag,): "nn.Embedding and nn.Flatten",
    (nn.PReLU, nn.RReLU): "nn.LeakyReLU",
    (nn.Hardswish,): "nn.SiLU",
    (nn.Hardsigmoid,): "nn.Sigmoid",
    (nn.Threshold, nn.Hardshrink, nn.Softshrink): "nn.ReLU",
    (nn.Tanhshrink,): "nn.Tanh",
    (nn.GLU,): "a product of two linear layers, one of them in torch.sigmoid",
}


def replacement(kind: type[nn.Module]) -> str:
    """Return the replacement for a layer of this type, for messages."""
    for types, instead in _REPLACEMENTS.items():
        if issubclass(kind, types):
            return instead
    return SAMPLING


def unsupported(what: str) -> ValueError:
    """Make the error for a part of a model."""
    return ValueError(
        "model must have layers and functions only that moments can be propagated through (else use 'monte_carlo'), "
        f"got {what}"
    )
