"""Public names: which there are, that none hides another, and that all arguments after the data are keyword-only."""

import inspect
import pkgutil
import subprocess
import sys
import types
from inspect import Parameter

import pytest

import bayesadam as ba
from test_docs import public
from test_public_names import PUBLIC

pytestmark = pytest.mark.nightly

KEYWORD, POSITIONAL = Parameter.KEYWORD_ONLY, (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
PASSED_ON = {"forward", "run", "PerturbedOptimizer"}
"""Methods that call a network, and the base of optimisers, whose options are those of its rule."""
DATA = {"data", "groups", "inputs", "target", "covariance", "log_variances", "log_aleatoric", "lr", "name", "posterior"}
DATA |= {"variance", "rows", "sample", "scratch", "seeds"}
"""Optional arguments that may follow others by position: data, memory for it, and the learning rate, as in PyTorch."""
OTHERS = {"fit", "train", "step", "zero_grad", "to", "load_state_dict", "predict", "predict_interval", "sample_y"}
OTHERS |= {"query_strategy", "draws", "writer"}
"""Methods with the signature of PyTorch's, scikit-learn's or modAL's of the same name; and the protocol of samples,
``(model, seed)``.
"""
LOW_LEVEL = ("bayesadam.noise", "bayesadam.functional", "bayesadam.core", "bayesadam.native")
"""Modules of tensor functions, which are called with all arguments in order."""


def callables():
    """Path, name and signature of every public function, class and method, without ``self``."""
    for path, value in dict(public()).items():
        if inspect.isclass(value) and issubclass(value, BaseException | types.SimpleNamespace):
            continue
        yield path, value.__name__, list(inspect.signature(value).parameters.values())
        for name, method in vars(value).items() if inspect.isclass(value) else ():
            function = method.__func__ if isinstance(method, classmethod | staticmethod) else method
            if not name.startswith("_") and inspect.isfunction(function):
                found = list(inspect.signature(function).parameters.values())
                yield f"{path}.{name}", name, found if isinstance(method, staticmethod) else found[1:]


SIGNATURES = list(callables())


def test_signatures_name_every_argument():
    assert len(SIGNATURES) > 300
    for path, name, parameters in SIGNATURES:
        for parameter in parameters:
            if parameter.kind is Parameter.VAR_KEYWORD and not path.startswith(LOW_LEVEL):
                assert name in PASSED_ON, f"{path} takes **{parameter.name}"


RESULTS = {"PosteriorReport", "PruningCurve", "TensorReport", "TrainingStatus", "Dataset", "MinimizeResult", "Options"}
"""Classes that only the library makes: their arguments are fields."""


def test_options_are_keyword_only():
    """What has a default and is no data is given by keyword; the first argument of all may be given by position."""
    for path, name, parameters in SIGNATURES:
        if name in OTHERS or path.startswith(LOW_LEVEL) or path.rpartition(".")[2] in RESULTS:
            continue
        for number, parameter in enumerate(parameters):
            optional = parameter.kind in POSITIONAL and parameter.default is not Parameter.empty
            assert not optional or number == 0 or parameter.name in DATA, f"{path}: {parameter.name}"


def test_one_word_for_one_thing():
    for path, _, parameters in SIGNATURES:
        names = {parameter.name for parameter in parameters}
        assert not names & {"targets", "num_samples", "n_data", "train_set_size"}, path


def test_ways_to_make_a_network_bayesian_are_alike():
    for make in (ba.variational, ba.fawn, ba.variational_last_layer):
        model, *others = inspect.signature(make).parameters.values()
        assert model.name == "model"
        assert all(parameter.kind is KEYWORD for parameter in others)
        assert others[0].name == "prior"
    shared = {"inputs", "target", "likelihood", "num_data", "kl_weight", "temperature", "wrapper"}
    kinds = (ba.bayes_by_backprop.VariationalModule, ba.moments.MomentModule, ba.moments.LastLayerModule)
    for kind in kinds:
        assert shared <= set(inspect.signature(kind.loss).parameters)


def test_names_at_the_top():
    assert len(ba.__all__) == len(set(ba.__all__)) <= 45
    for name in ba.__all__:
        assert not isinstance(getattr(ba, name), types.ModuleType)
    modules = {module.split(".")[1] for module in PUBLIC if "." in module}
    assert set(ba.__all__) | modules <= set(dir(ba))
    for name in modules:
        assert getattr(ba, name).__name__ == f"bayesadam.{name}"


def test_no_function_hides_a_module():
    for module in pkgutil.iter_modules(ba.__path__):
        assert module.name not in ba.__all__, module.name


def test_classes_have_names_of_their_own():
    """Except within one module: no two public classes are told apart by their module only."""
    homes = {}
    for _, value in public():
        if inspect.isclass(value):
            homes.setdefault(value.__name__, set()).add(value)
    assert len(homes) > 80
    assert all(len(classes) == 1 for classes in homes.values()), homes
    for name, (value,) in homes.items():
        if issubclass(value, ba.priors.Prior):
            assert name.endswith("Prior")


def test_a_missing_extra_is_one_clear_message():
    code = """
import sys
sys.modules["sklearn"] = None
import bayesadam as ba
try:
    ba.sklearn
except ImportError as error:
    assert str(error) == 'bayesadam.sklearn needs scikit-learn: pip install "bayesadam[sklearn]"', error
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="^module 'bayesadam' has no attribute 'nelbo'$"):
        _ = ba.nelbo
