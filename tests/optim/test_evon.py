"""EVON: rotated coordinates, the bases, and the posterior that they give."""

import copy

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from bayesadam.functional import eigenbasis

F64 = torch.float64


def network(dtype=F64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def loss_of(net, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 5, generator=generator, dtype=F64)
    target = x[:, :3].sin() + 0.1 * torch.randn(8, 3, generator=generator, dtype=F64)
    return nn.functional.mse_loss(net(x.to(net[0].weight.dtype)).double(), target)


def trained(steps=6, dtype=F64, mode="block", **options):
    net = network(dtype)
    settings = {"num_data": 40, "batch_size": 8, "lr": 1.0, "collect_every": 1, "refresh_every": 4} | options
    opt = ba.EVON(net.named_parameters(), **settings)
    go_on(net, opt, 0, steps, mode)
    return net, opt


def go_on(net, opt, first, last, mode="block"):
    if mode == "train":
        opt.train()
    for step in range(first, last):

        def closure(step=step):
            opt.zero_grad()
            loss_of(net, step).backward()

        if mode == "block":
            for _ in range(opt.param_groups[0]["mc_samples"]):
                with opt.sampled_params():
                    closure()
            opt.step()
        else:
            closure()
            opt.step()
    if mode == "train":
        opt.eval()


def kronecker(state):
    """``L kron R`` of a weight matrix, formed."""
    left, right = (
        torch.eye(size, dtype=F64) if side not in state else eigenbasis.dense(state[side]).double()
        for side, size in zip(("left", "right"), state["mean"].shape, strict=True)
    )
    return torch.kron(left, right)


def test_complete_and_partial_bases_are_orthogonal_and_begin_with_the_given_vectors():
    vectors, _ = torch.linalg.qr(torch.randn(12, 12, dtype=F64))
    matrix = torch.randn(12, 12, dtype=F64)
    for rank in (1, 4, 5, 6, 12):
        basis = eigenbasis.from_vectors(vectors, rank, F64)
        dense = eigenbasis.dense(basis)
        assert basis.shape == ((12, 12) if rank >= 6 else (2, 12, rank))
        torch.testing.assert_close(dense.mT @ dense, torch.eye(12, dtype=F64))
        overlap = (dense[:, :rank] * vectors[:, :rank]).sum(0)
        torch.testing.assert_close(overlap.abs(), torch.ones(rank, dtype=F64))
        torch.testing.assert_close(eigenbasis.into(matrix, basis, dense), dense.mT @ matrix @ dense)
        torch.testing.assert_close(eigenbasis.out(matrix, dense, basis), dense @ matrix @ dense.mT)
        assert torch.equal(eigenbasis.into(matrix, None, None), matrix)


def test_a_basis_of_the_first_coordinates_needs_no_reflection():
    for rank in (2, 5):
        dense = eigenbasis.dense(eigenbasis.from_vectors(torch.eye(8, dtype=F64), rank, F64))
        torch.testing.assert_close(dense.abs(), torch.eye(8, dtype=F64))


@pytest.mark.parametrize("rank", [2, 96])
def test_a_sample_is_noise_of_the_eigenvalues_in_the_bases(rank):
    net, opt = trained(rank=rank, seed=7)
    q = opt.posterior()
    with opt.sampled_params():
        for index, (name, p) in enumerate(net.named_parameters()):
            eps = noise.normal(7, 6, 0, index, p.shape).double()
            moved = q.eigenvalues[name].sqrt() * eps
            if p.ndim > 1:
                moved = q.left[name] @ moved @ q.right[name].mT
            torch.testing.assert_close(p.detach(), q.mean[name] + moved, rtol=1e-10, atol=1e-12)
        loss_of(net, 6).backward()


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_a_step_is_ivons_in_formed_coordinates(mc_samples):
    """With matrices of ``40 x 40`` in place of the products, and the update written out."""
    net, opt = trained(mc_samples=mc_samples, recipe="paper", betas=(0.8, 0.9), lr=0.1, clip_radius=2.0)
    group, state = opt.param_groups[0], copy.deepcopy(opt.state[net[0].weight])
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    turn, number, lt = kronecker(state), 40, 1.0 / 40
    mean, average, s = (state[key].flatten().clone() for key in ("mean", "exp_avg", "hessian"))
    mean, grad, h = turn.mT @ mean, torch.zeros(30, dtype=F64), torch.zeros(30, dtype=F64)
    for sample in range(mc_samples):
        with opt.sampled_params():
            opt.zero_grad()
            loss_of(net, 6).backward()
            own = turn.mT @ net[0].weight.grad.flatten()
            eps = noise.normal(0, 6, sample, 0, (6, 5)).double().flatten()
            grad += own / mc_samples
            h += own * eps * (number * (s + lt)).sqrt() / mc_samples
    opt.step()
    average = 0.8 * average + 0.2 * grad
    error = s - h
    s = s - 0.1 * error + 0.5 * 0.01 * error**2 / (s + lt)
    step = (average / (1 - 0.8**7) + lt * mean) / (s + lt)
    start = max(number, 1.0) / number
    mean = mean - 0.1 * start * step.clamp(-2.0, 2.0)
    after = opt.state[net[0].weight]
    assert group["initial_precision"] is None
    assert not torch.equal(before["0.weight"], net[0].weight)
    torch.testing.assert_close(net[0].weight.detach().flatten(), turn @ mean, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(after["hessian"].flatten(), s, rtol=1e-9, atol=1e-11)  # step 7 refreshes nothing
    torch.testing.assert_close(after["exp_avg"].flatten(), average, rtol=1e-9, atol=1e-11)


def test_factors_are_averages_of_products_of_centred_gradients_and_bases_their_eigenvectors():
    net = network()
    opt = ba.EVON(net.named_parameters(), num_data=40, lr=0.0, collect_every=1, refresh_every=5, betas=(0.9, 0.99999))
    weight, average, left, right = net[2].weight, torch.zeros(3, 6, dtype=F64), 0.0, 0.0
    for step in range(5):
        with opt.sampled_params():
            loss_of(net, step).backward()
        moved = weight.grad - (average / (1 - 0.9**step) if step else 0.0)
        average = 0.9 * average + 0.1 * weight.grad
        share = 3.0 / (step + 3.0)
        left = left + share * (moved @ moved.mT - left)
        right = right + share * (moved.mT @ moved - right)
        opt.step()
    state = opt.state[weight]
    for side, factor in (("left", left), ("right", right)):
        turned = state[side].mT @ factor @ state[side]
        torch.testing.assert_close(turned, torch.diag(turned.diagonal()), rtol=0, atol=1e-9 * float(factor.trace()))
        torch.testing.assert_close(turned, state[f"{side}_factor"], rtol=0, atol=1e-9 * float(factor.trace()))
        assert (turned.diagonal().diff() <= 1e-12).all()


def test_new_bases_rotate_mean_and_momentum_and_project_the_hessian():
    before, after = (trained(steps, refresh_every=every)[1] for steps, every in ((6, 100), (6, 6)))
    for first, second in zip(before.state.values(), after.state.values(), strict=True):
        if "left" not in first:
            continue
        old, new = kronecker(first), kronecker(second)
        assert not torch.allclose(old, new)
        for name in ("rotated", "exp_avg"):
            torch.testing.assert_close(new @ second[name].flatten(), old @ first[name].flatten())
        whole = new.mT @ old @ torch.diag(first["hessian"].flatten()) @ old.mT @ new
        torch.testing.assert_close(second["hessian"].flatten(), whole.diagonal())
        torch.testing.assert_close(second["mean"].flatten(), new @ second["rotated"].flatten())


def test_bases_are_refreshed_at_powers_of_two_and_then_regularly():
    net, opt = trained(0, refresh_every=10)
    changed, last = [], opt.state
    for step in range(1, 31):
        go_on(net, opt, step, step + 1)
        now = opt.state[net[0].weight]["left"].clone()
        if step == 1 or not torch.equal(now, last):
            changed.append(step)
        last = now
    assert changed == [1, 2, 4, 8, 10, 20, 30]


def test_covariance_of_a_quadratic_becomes_its_inverse():
    """One row: the basis is complete, and so is the covariance. A diagonal one cannot have these correlations."""
    root = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.6, 0.0], [-0.5, 0.8, 0.5]], dtype=F64)
    curvature, distance = root @ root.mT, {}
    exact = torch.linalg.inv(50 * curvature + 2 * torch.eye(3, dtype=F64))
    for kind, own in ((ba.EVON, {"collect_every": 1, "refresh_every": 20}), (ba.IVON, {})):
        w = nn.Parameter(torch.ones(1, 3, dtype=F64))
        opt = kind([("w", w)], 0.5, num_data=50, prior_precision=2.0, temperature=1.0, **own)
        for _ in range(800):
            with opt.sampled_params():
                opt.zero_grad()
                (0.5 * (w @ curvature @ w.mT).sum()).backward()
            opt.step()
        q = opt.posterior()
        drawn = torch.cov(q.sample(4_000, seed=1)["w"][:, 0].mT)
        distance[kind] = torch.dist(drawn, exact) / exact.norm()
        if kind is ba.EVON:
            basis = q.right["w"]
            formed = (basis * q.eigenvalues["w"][0]) @ basis.mT
            torch.testing.assert_close(q.variance["w"][0], formed.diagonal())
            assert torch.dist(formed, exact) < 0.1 * exact.norm()
    assert distance[ba.EVON] < 0.15
    assert distance[ba.IVON] > 0.5


def test_a_prior_that_differs_between_the_weights_is_exact_in_its_gradient():
    """The mean becomes that of the posterior, though the prior's precision is not diagonal in the bases."""
    root = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.6, 0.0], [-0.5, 0.8, 0.5]], dtype=F64)
    curvature, best = root @ root.mT, torch.tensor([[1.0, -2.0, 0.5]], dtype=F64)
    center, precision = torch.tensor([[0.5, 1.0, -1.0]], dtype=F64), torch.tensor([[1.0, 20.0, 60.0]], dtype=F64)
    prior = ba.DiagonalGaussian({"w": center}, {"w": 1.0 / precision})
    w = nn.Parameter(torch.zeros(1, 3, dtype=F64))
    options = {"initial_precision": 100.0, "temperature": 1.0, "rescale_lr": False, "mc_samples": 2}
    opt = ba.EVON([("w", w)], 0.3, num_data=50, prior=prior, collect_every=1, antithetic=True, **options)
    for _ in range(200):
        for _ in range(2):
            with opt.sampled_params():
                (0.5 * ((w - best) @ curvature @ (w - best).mT).sum()).backward()
        opt.step()
    whole = 50 * curvature + torch.diag(precision[0])
    expected = torch.linalg.solve(whole, 50 * curvature @ best[0] + precision[0] * center[0])
    torch.testing.assert_close(w.detach()[0], expected, rtol=0.0, atol=1e-4)
    basis = eigenbasis.dense(opt.state[w]["right"])
    torch.testing.assert_close(
        opt.state[w]["rotated_prior"][0], (basis.mT @ torch.diag(precision[0]) @ basis).diagonal()
    )


def test_vectors_wide_sides_and_parameters_without_noise_have_no_basis():
    net = network()
    groups = [
        {"params": [("0.weight", net[0].weight), ("0.bias", net[0].bias)], "max_side": 5},
        {"params": [("2.weight", net[2].weight), ("2.bias", net[2].bias)], "perturb": False},
    ]
    opt = ba.EVON(groups, num_data=40)
    go_on(net, opt, 0, 3)
    bases = [{"left", "right"} & opt.state[p].keys() for p in net.parameters()]
    assert bases == [{"right"}, set(), set(), set()]
    q = opt.posterior(net)
    assert isinstance(q, ba.KroneckerGaussian)
    assert list(q.right) == ["0.weight"]
    assert not q.left
    assert not q.variance["2.weight"].any()


def test_without_bases_it_is_ivon():
    found = []
    for kind, own in ((ba.IVON, {}), (ba.EVON, {"max_side": 1})):
        net = network()
        opt = kind(net.named_parameters(), 0.2, num_data=40, batch_size=8, temperature=0.03, **own)
        go_on(net, opt, 0, 4, "train")
        found.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(*found)


def test_the_posterior_is_saved_and_predicts(tmp_path):
    net, opt = trained(dtype=torch.float32, mode="train", rank=2)
    q = opt.posterior(net)
    q.save(tmp_path / "q.safetensors")
    loaded = ba.load_posterior(tmp_path / "q.safetensors")
    x = torch.randn(4, 5)
    for method in ("monte_carlo", "linearized"):
        likelihood = ba.Gaussian(4.0)
        first, second = (ba.predict(net, p, x, likelihood=likelihood, method=method) for p in (q, loaded))
        assert torch.equal(first.variance, second.variance)
        assert (first.epistemic > 0).all()
    assert opt.report().steps == 6
    store = opt._engine.store
    for slot in store.slots():
        name = store.names()[slot.parameter]
        torch.testing.assert_close(store.variance(slot, opt.state[slot.parameter]).double(), q.variance[name].double())


@pytest.mark.parametrize("mode", ["block", "train"])
def test_resuming_is_bit_identical_over_refreshes(mode):
    net, opt = trained(5, mode=mode, dtype=torch.float32)
    saved = copy.deepcopy((net.state_dict(), opt.state_dict()))
    go_on(net, opt, 5, 10, mode)
    other, resumed = trained(0, dtype=torch.float32)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    go_on(other, resumed, 5, 10, mode)
    for first, second in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)
        for key, value in opt.state[first].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, resumed.state[second][key])


def test_the_mean_is_known_while_weights_hold_a_sample():
    net, opt = trained(3)
    opt.attach(net)
    other, plain = trained(3)
    opt.train()
    for first, second in ((net, opt), (other, plain)):
        go_on(first, second, 3, 6, "block") if first is other else [_drop_in(first, second, step) for step in (3, 4, 5)]
    means = net.state_dict()
    for name, p in other.named_parameters():
        assert torch.equal(means[name], p.detach())
        assert torch.equal(opt.posterior().mean[name], p.detach())


def _drop_in(net, opt, step):
    opt.zero_grad()
    loss_of(net, step).backward()
    opt.step()


def test_what_it_refuses():
    net = network()
    for name in ("low_memory", "rank_samples"):
        with pytest.raises(ValueError, match=f"^{name} must be False for EVON, got True"):
            ba.EVON(net.named_parameters(), num_data=40, **{name: True})
    for name in ("rank", "max_side", "collect_every", "refresh_every"):
        with pytest.raises(ValueError, match=f"^{name} must be a whole number of at least 1, got 0"):
            ba.EVON(net.named_parameters(), num_data=40, **{name: 0})
    with pytest.raises(ValueError, match="^method must be one of"):
        data = [(torch.ones(2, 5), torch.ones(2, 3))]
        ba.population.train([net], data, method=ba.EVON, epochs=1, batch_size=2, likelihood=ba.Gaussian(1.0))


def test_a_state_with_other_bases_is_refused():
    net, opt = trained()
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][0]["left"] = torch.eye(5, dtype=F64)
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises(
        ValueError, match=r"^the state of parameter '0.weight' must have bases of the shapes .*\(6, 6\)"
    ):
        opt.load_state_dict(saved)
    assert torch.equal(before["state"][0]["left"], opt.state[net[0].weight]["left"])


def test_its_recipe_is_warmer_and_faster_than_that_of_ivon():
    settings = {"num_data": 4_000, "batch_size": 20, "total_steps": 200}
    found = {}
    for kind in (ba.EVON, ba.IVON):
        model = nn.Linear(100, 8)
        group = kind(model.named_parameters(), **settings).param_groups[0]
        found[kind] = (group["temperature"], group["lr"])
    assert found[ba.EVON] == pytest.approx((0.1, 0.2 * 80 * 20 / 808))
    assert found[ba.IVON] == pytest.approx((0.03, 0.1 * 80 * 20 / 808))
    assert ba.EVON(nn.Linear(2, 2).named_parameters(), num_data=40).param_groups[0]["lr"] == 0.2
    paper = ba.EVON(nn.Linear(2, 2).named_parameters(), num_data=40, recipe="paper").param_groups[0]
    assert (paper["temperature"], paper["lr"]) == (1.0, 0.1)
