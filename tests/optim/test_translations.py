"""Hyper-parameters of other optimisers are refused with what stands for them here."""

import re

import pytest
import torch

import bayesadam as ba
from bayesadam.optim.translations import TRANSLATIONS, check_foreign
from bayesadam.population import BayesByBackprop
from optim.conftest import make_net

METHODS = {"Vadam": ba.Vadam, "IVON": ba.IVON, "VON": ba.VON}
NAMED = """weight_decay eps ess hess_init lam amsgrad decoupled_weight_decay train_set_size n_data prior_prec
    n_samples num_samples""".split()


def message(name, value):
    return re.escape(f"{name} must be {TRANSLATIONS[name]}, got {value!r}")


@pytest.mark.parametrize("name", TRANSLATIONS)
@pytest.mark.parametrize("method", METHODS)
def test_the_constructor_says_what_stands_for_a_foreign_argument(method, name):
    with pytest.raises(TypeError, match=message(name, 0.01)):
        METHODS[method](make_net().named_parameters(), num_data=50, **{name: 0.01})


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_a_group_says_it_too_and_nothing_changes(name):
    net = make_net()
    with pytest.raises(TypeError, match=message(name, 0.01)):
        ba.IVON([{"params": list(net.named_parameters()), name: 0.01}], num_data=50)
    opt = ba.IVON(net[0].named_parameters(), num_data=50)
    with pytest.raises(TypeError, match=message(name, 3)):
        opt.add_param_group({"params": list(net[2].named_parameters("2")), name: 3})
    assert len(opt.param_groups) == 1
    assert len(opt.param_groups[0]["params"]) == 2


def test_names_that_people_know_are_translated():
    assert set(NAMED) <= TRANSLATIONS.keys()
    with pytest.raises(
        TypeError,
        match=re.escape(
            "weight_decay must be given as prior_precision = weight_decay * num_data / temperature "
            "(ba.param_groups does it), got 0.01"
        ),
    ):
        check_foreign({"lr": 0.1, "weight_decay": 0.01}, ())


def test_what_a_method_has_itself_is_no_foreign_name():
    check_foreign({"eps": 1e-3, "lr": 0.1}, {"eps"})
    net = make_net()
    opt = BayesByBackprop([{"params": list(net.parameters()), "eps": 1e-3}], num_data=50, eps=1e-4)
    assert opt.param_groups[0]["eps"] == 1e-3


def test_no_entry_of_an_optimisers_own_groups_is_foreign():
    for cls in (*METHODS.values(), BayesByBackprop):
        net = make_net()
        (group,) = cls(net.named_parameters(), num_data=50).param_groups
        assert not (TRANSLATIONS.keys() & group.keys()) - {"eps"}


def test_the_translation_of_eps_is_that_of_the_rule():
    """Vadam without noise and momentum at a gradient of 1e-4: Adam with ``eps``, whose first step it shortens."""
    eps, num_data, gradient, steps = 1e-4, 1e10, 1e-4, {}
    for name in ("adam", "vadam"):
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        if name == "adam":
            opt = torch.optim.Adam([weight], lr=0.1, eps=eps)
        else:
            opt = ba.Vadam(
                [{"params": [weight], "perturb": False}],
                lr=0.1,
                betas=(0.9, 0.999),
                num_data=num_data,
                prior_precision=eps * num_data,
                initial_precision=num_data,
                temperature=1.0,
                recipe="paper",
            )
            opt.train()
        weight.grad = torch.full_like(weight, gradient)
        opt.step()
        steps[name] = weight.item()
    assert steps["adam"] == pytest.approx(-0.05)
    assert steps["vadam"] == pytest.approx(steps["adam"], rel=1e-9)
