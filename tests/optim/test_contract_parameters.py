"""Parameters of all kinds: frozen, unused, tied, empty, of any dtype and layout, without noise, added later."""

import copy
import itertools

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from modules import module_of
from optim.methods import (
    MODES,
    REPRESENTATIVES,
    Method,
    backward,
    by_name,
    every_method,
    layer_groups,
    loss_of,
    made,
    make_net,
    make_step,
    methods,
    representatives,
    train,
    ways,
    weights,
)


class Square(nn.Module):
    def __init__(self, parameter):
        super().__init__()
        self.weight = parameter

    def forward(self, x):
        return x * self.weight.double().square().sum()


class Squares(nn.ModuleList):
    """The sum of the squares of all parameters, times each input."""

    def __init__(self, *parameters):
        super().__init__(map(Square, parameters))

    def forward(self, x):
        return sum(part(x) for part in self)

    def loss(self):
        return self(torch.ones(1, dtype=torch.float64)).mean()


class PartlyUsed(nn.ModuleDict):
    def forward(self, x):
        return self["used"](x)


@ways(REPRESENTATIVES)
def test_frozen_and_unused_parameters_are_not_touched(method, mode):
    net = PartlyUsed({name: nn.Linear(3, 3) for name in ("frozen", "unused", "used")})
    net["frozen"].requires_grad_(False)
    for p in net["frozen"].parameters():
        p.grad = torch.ones_like(p)  # stale
    opt = method(net)
    before = by_name(net)

    def compute():
        for name, p in net["frozen"].named_parameters():
            assert torch.equal(p, before[f"frozen.{name}"])
        return net(torch.ones(2, 3)).square().mean()

    for _ in range(3):
        make_step(opt, compute, mode)
    opt.eval()
    for name, p in net.named_parameters():
        assert torch.equal(p, before[name]) == (not name.startswith("used")), name
    assert set(opt.posterior().mean) == {"unused.weight", "unused.bias", "used.weight", "used.bias"}


@methods(["vadam", "ivon", "von exact"])
def test_an_unused_parameter_does_not_get_its_neighbours_gradient(method):
    """Fault of the 2018 code: gradients taken by counter, not by parameter."""
    results = []
    for needs_grad in (False, True):
        layer, first = nn.Linear(3, 3), nn.Parameter(torch.zeros(3, 3), requires_grad=needs_grad)
        nn.init.constant_(layer.weight, 0.1)
        nn.init.constant_(layer.bias, 0.2)
        opt = method(layer, [first, *layer.parameters()])
        for _ in range(3):
            make_step(opt, lambda layer=layer: layer(torch.ones(2, 3)).square().mean())
        assert not first.any()
        results.append(weights(layer))
    assert torch.equal(*results)  # frozen and unused count in the noise index alike


@representatives
def test_a_parameter_used_by_some_samples_only_counts_zero_for_the_others(method):
    nets = [make_net(torch.float64), make_net(torch.float64)]
    for net, explicit in zip(nets, (False, True), strict=True):
        opt = method(net, mc_samples=3)
        for sample in range(3):
            with opt.sampled_params():
                if sample == 1:
                    backward(opt, loss_of(net))
                elif explicit:
                    backward(opt, 0.0 * loss_of(net))
        opt.step()
    torch.testing.assert_close(*map(weights, nets), rtol=1e-12, atol=0)


@representatives
def test_mixed_dtypes_in_one_group(method):
    net = Squares(*(nn.Parameter(torch.ones(4, dtype=d)) for d in (torch.float32, torch.float64, torch.bfloat16)))
    opt = method(net)
    for _ in range(3):
        make_step(opt, net.loss)
    for p in net.parameters():
        assert p.dtype == p.grad.dtype
        assert (p < 1).all()
        tensors = {k: v for k, v in opt.state[p].items() if v.ndim}
        assert {t.dtype for t in tensors.values()} == {torch.float64 if p.dtype == torch.float64 else torch.float32}


@pytest.mark.parametrize("mode", MODES)
@methods(["vadam", "ivon", "vadagrad"])
def test_bfloat16_parameters_have_a_float32_mean(method, mode):
    """Steps far below bfloat16's resolution must add up."""
    net = nn.Linear(64, 1, bias=False).bfloat16()
    nn.init.ones_(net.weight)
    scale = {"num_data": 1, "lr": 1e5} if method.name == "vadagrad" else {"num_data": 1e12, "lr": 1.0}
    opt = method(net, initial_precision=1e12, **scale)
    means = []
    for _ in range(30):
        make_step(opt, lambda: (net.weight.float() * 1e-5).sum(), mode)
        means.append(opt.state[net.weight]["mean"].clone())
    opt.eval()
    assert means[0].dtype == torch.float32
    assert all((before > after).all() for before, after in itertools.pairwise(means))
    assert torch.equal(net.weight, means[-1].bfloat16())


def test_the_scale_of_float16_gradients_does_not_overflow():
    net = nn.Linear(100, 1, bias=False).half()
    opt = Method("vadam")(net, mc_samples=2, compile=False)
    for _ in range(2):
        with opt.sampled_params():
            net.weight.grad = torch.full_like(net.weight, 1e4)
    opt.step()
    assert opt.posterior().variance["weight"].isfinite().all()
    assert (opt.posterior().variance["weight"] > 0).all()


@ways(REPRESENTATIVES)
def test_every_group_has_a_rate_of_its_own(method, mode):
    net = make_net()
    opt = method(net, layer_groups(net, lr=0.0))
    before = [p.detach().clone() for p in net.parameters()]
    train(net, opt, 2, mode=mode)
    opt.eval()
    assert [torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True)] == [False, False, True, True]


@representatives
def test_tied_weights_stay_tied(method):
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    net[2].weight = net[0].weight
    opt = method(net)
    for _ in range(3):
        make_step(opt, lambda: net(torch.ones(2, 4)).square().mean())
        assert net[2].weight is net[0].weight
    assert list(opt.posterior().mean) == ["0.weight"]


@ways(REPRESENTATIVES)
def test_storages_and_views_stay_where_they_are(method, mode):
    net = make_net()
    flat = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    nn.utils.vector_to_parameters(flat, net.parameters())  # every parameter is now a view of flat
    addresses = [p.data_ptr() for p in net.parameters()]
    train(net, method(net), 3, mode=mode)
    assert [p.data_ptr() for p in net.parameters()] == addresses
    assert torch.equal(flat.double(), weights(net))


def conv_net(channels_last):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 2)).double()
    return net.to(memory_format=torch.channels_last) if channels_last else net


@methods([*REPRESENTATIVES, "ivon eager"])
@pytest.mark.parametrize("samples", [1, 2])
def test_channels_last_is_preserved_and_gives_the_same_numbers(method, samples):
    nets = [conv_net(False), conv_net(True)]
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    for net in nets:
        opt = method(net, mc_samples=samples)
        for _ in range(2):
            make_step(opt, lambda net=net: net(x).square().mean())
    assert nets[1][0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not nets[1][0].weight.is_contiguous()
    torch.testing.assert_close(*map(list, map(nn.Module.parameters, nets)), rtol=1e-10, atol=1e-12)


@representatives
def test_empty_and_scalar_parameters(method):
    net = Squares(nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.tensor(1.0)))
    make_step(method(net), net.loss)
    assert net[1].weight.item() < 1


@representatives
def test_a_group_without_noise_is_trained_all_the_same(method):
    net = make_net()
    opt = method(net, layer_groups(net, perturb=False))
    start = net[2].weight.detach().clone()
    for step in range(3):
        mean = net[2].weight.detach().clone()
        with opt.sampled_params():
            assert torch.equal(net[2].weight, mean)
            backward(opt, loss_of(net, step))
        opt.step()
    assert not torch.equal(net[2].weight, start)
    q = opt.posterior()
    assert not q.variance["2.weight"].any()
    assert (q.variance["0.weight"] > 0).all()


@ways(["vadam", "ivon", "von exact"], ["block", "train"])
def test_a_group_that_is_added_later_leaves_the_others_as_they_are(method, mode):
    """New parameters get the next noise indices; those of the others and their noise stay."""
    net, extra = make_net(), nn.Parameter(torch.zeros(2))
    opt = method(net, seed=5)
    train(net, opt, 2, mode=mode)
    opt.eval()
    opt.add_param_group({"params": [("extra", extra)], "lr": 0.5})
    q = opt.posterior()
    seen = []

    def compute(step):
        seen.append(extra.detach().clone())
        return loss_of(net, step) + (extra - 1).square().sum()

    for step in (2, 3):
        make_step(opt, lambda step=step: compute(step), mode)
    opt.eval()
    expected = q.variance["extra"].sqrt() * noise.normal(5, 2, 0, 4, (2,))
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-6)
    reference = make_net()
    train(reference, method(reference, seed=5), 4)
    assert torch.equal(weights(net), weights(reference))
    assert (extra != 0).all()


def test_ordered_collections_of_parameters_are_taken():
    net, method = make_net(), Method("vadam")
    opt = method(net, dict.fromkeys(net.parameters()).keys())
    assert [id(p) for p in opt.param_groups[0]["params"]] == [id(p) for p in net.parameters()]


@every_method
def test_a_frozen_complex_parameter_is_left_alone(method):
    """Outputs are multiplied by its magnitudes, which are 1."""
    phases = nn.Parameter(torch.tensor([1j, 1.0 + 0j]), requires_grad=False)
    net, plain = make_net().append(module_of(lambda self, x: x * self.phases.abs(), phases=phases)), make_net()
    for each in (net, plain):
        opt = method(each)
        opt.attach(each)
        train(each, opt, 2, mode=method.mode)
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        train(each, opt, 1, first=2, mode=method.mode)
        opt.eval()
        assert "3.phases" not in opt.posterior().mean
    assert net[3].phases.tolist() == [1j, 1.0]
    assert torch.equal(weights(net[:3]), weights(plain))


@ways(REPRESENTATIVES)
def test_lazy_modules(method, mode):
    """An optimiser that is made before the first forward pass trains all parameters from the first step."""
    net = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(2)).double()
    opt = method(net, lr=0.01)
    x = torch.linspace(-1.0, 1.0, 24, dtype=torch.float64).view(8, 3)

    def compute():
        return net(x).square().mean()

    if mode == "train":
        opt.train()
    make_step(opt, compute, mode)
    before = opt.posterior(net).mean
    assert all(parameter in opt.state for parameter in net.parameters())
    if mode == "train":
        assert all(not torch.equal(parameter, before[name]) for name, parameter in net.named_parameters())
    for _ in range(50):
        make_step(opt, compute, mode)
    losses = [torch.func.functional_call(net, q, x).square().mean() for q in (before, opt.posterior(net).mean)]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("mode", ["block", "train"])
def test_another_dtype_between_steps(mode):
    """The mean keeps its bits: steps that are too small for bfloat16 add up."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    opt = ba.Vadam(net.named_parameters(), lr=1e-4, num_data=1e6, initial_precision=1e6)

    def compute():
        return net(torch.ones(4, 1, dtype=net.weight.dtype)).mean()

    make_step(opt, compute, mode)
    opt.eval()
    net.bfloat16()
    for _ in range(100):
        make_step(opt, compute, mode)
    assert opt.posterior().mean["weight"].item() == pytest.approx(1.0 - 101 * 1e-4, rel=1e-3)


def test_weights_in_other_memory_are_noticed():
    net = make_net()
    opt = ba.Vadam(net.named_parameters(), num_data=64)
    opt.train()
    given = torch.full((weights(net).numel(),), 0.5)
    nn.utils.vector_to_parameters(given, net.parameters())
    loss_of(net).backward()
    with pytest.raises(RuntimeError, match=r"parameter '0\.weight' must hold the sample"):
        opt.step()
    with pytest.warns(UserWarning, match="its values are taken as the mean"):
        opt.eval()
    assert torch.equal(weights(net), given.double())


@representatives
@pytest.mark.parametrize("change", ["more", "fewer", "transposed"])
def test_another_shape_is_noticed(method, change):
    """Before anything is read or written, in the place of the memory that the state was made for."""
    net, opt = made(method)
    train(net, opt, 1)
    before, weight = weights(net)[24:], net[0].weight
    values = {"more": torch.ones(11, 3), "fewer": torch.ones(2, 3), "transposed": torch.ones(3, 8)}[change]
    weight.data = values.clone()
    with pytest.raises(RuntimeError, match=r"'0.weight' must be of shape .*, got \(8, 3\) for 'mean': make a new"):
        opt.sampled_params().__enter__()
    assert torch.equal(weight, values)
    assert torch.equal(weights(net)[values.numel() :], before)


@pytest.mark.parametrize("name", ["vadam", "ivon", "ivon eager", "bayesadam"])
def test_groups_of_several_seeds_are_several_networks(name):
    """One optimiser of two networks trains each as its own optimiser does."""
    method = Method(name)
    nets = [make_net(), make_net()]
    alone = [copy.deepcopy(net) for net in nets]
    groups = [{"params": list(net.named_parameters()), "seed": 5 + 2**40 * i} for i, net in enumerate(nets)]
    opt = method(nets[0], groups)
    opt.train()
    for step in range(3):
        opt.zero_grad()
        sum(loss_of(net, step) for net in nets).backward()
        opt.step()
    opt.eval()
    for i, net in enumerate(alone):
        other = method(net, seed=5 + 2**40 * i)
        train(net, other, 3)
        joint, expected = opt.posterior(nets[i]), other.posterior(net)
        assert joint.hyperparameters == expected.hyperparameters
        for parameter in expected.mean:
            torch.testing.assert_close(joint.mean[parameter], expected.mean[parameter], rtol=1e-6, atol=1e-8)
            torch.testing.assert_close(joint.variance[parameter], expected.variance[parameter], rtol=1e-6, atol=0)
