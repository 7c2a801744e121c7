"""The inputs with which PyTorch tests its own optimisers, as far as it ships them.

The package has their valid and invalid arguments (``common_optimizers``), but not the tests that train with them.
"""

import warnings

import pytest
import torch

from optim.methods import EVERY, every_method, make_net, methods, train

pytest.importorskip("expecttest", reason="torch.testing._internal needs it")
from torch.testing._internal import common_optimizers as shipped

OTHERS = {"weight_decay", "amsgrad", "foreach", "fused", "capturable", "differentiable"}
"""Arguments of PyTorch's optimisers for which these have none: the prior takes the place of the weight decay."""
INVALID = [
    error
    for error in shipped.optim_error_inputs_func_adam("cpu", torch.float32)
    if not OTHERS & error.optimizer_error_input.kwargs.keys()
    and "both Tensors" not in error.error_regex
    and error.error_type is not UserWarning  # about a parameter that is there twice, which these refuse
]
ONE_PARAMETER = [torch.nn.Parameter(torch.ones(1, 1))]


def test_the_inputs_are_shipped():
    assert len(INVALID) == 6


@methods([key for key in EVERY if not key.startswith("vogn")])  # whose curvature is refused first: of another model
@pytest.mark.parametrize("error", INVALID, ids=lambda error: error.optimizer_error_input.desc)
def test_invalid_inputs_are_refused_as_torch_does(method, error):
    given = error.optimizer_error_input
    own = "must be a pair of numbers" if "betas" in given.kwargs else "must be .* a 1-element tensor"
    message = own if given.kwargs.keys() & {"lr", "betas"} and given.params is None else error.error_regex
    params = ONE_PARAMETER if given.params is None else given.params
    with pytest.raises(error.error_type, match=message):
        method(make_net(), params, **given.kwargs)


@every_method
def test_valid_inputs_are_trained_with(method):
    for given in shipped.optim_inputs_func_adam("cpu", torch.float32):
        if not OTHERS & given.kwargs.keys() - {"weight_decay"}:
            options = {name: value for name, value in given.kwargs.items() if name != "weight_decay"}
            net = make_net()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                train(net, method(net, **options), 2)
