"""What two ranks do in the distributed tests; each function runs in both processes and raises where it is wrong."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import bayesadam as ba
from bayesadam.optim import OPTIMIZERS
from optim.conftest import SHARDED, Method, batch, weights


def wide_net():
    """Sizes that two ranks cannot share evenly."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def half_loss(net, step, rank):
    x, y = (t.double()[8 * rank : 8 * (rank + 1)] for t in batch(step))
    return torch.nn.functional.mse_loss(net(x), y)


def run(net, opt, steps, rank, mode="block", samples=1, first=0):
    if mode == "train":
        opt.train()
    for step in range(first, first + steps):
        opt.zero_grad()
        for sample in range(samples):
            if mode == "block":
                with opt.sampled_params():
                    half_loss(net, 10 * step + sample, rank).backward()
            else:
                half_loss(net, 10 * step + sample, rank).backward()
        opt.step()
    opt.eval()


def alone(method, mode, samples, steps=4, stride=10):
    """The same run in one process on the whole batch."""
    net = wide_net()
    opt = method(net.named_parameters(), mc_samples=samples)
    if mode == "train":
        opt.train()
    for step in range(steps):
        opt.zero_grad()
        for sample in range(samples):
            x, y = (t.double() for t in batch(stride * step + sample))
            if mode == "block":
                with opt.sampled_params():
                    torch.nn.functional.mse_loss(net(x), y).backward()
            else:
                torch.nn.functional.mse_loss(net(x), y).backward()
        opt.step()
    opt.eval()
    return net, opt


def cases():
    for name in SHARDED:
        for mode, samples in (("block", 1), ("block", 3), ("train", 1)):
            yield Method(name), mode, samples


def data_parallel(rank, folder):
    """All ranks draw the same noise, so averaging gradients is exact: as one process on the whole batch."""
    for method, mode, samples in cases():
        net = wide_net()
        parallel = DistributedDataParallel(net)
        opt = method(net.named_parameters(), model=parallel, mc_samples=samples)
        run(parallel, opt, 4, rank, mode, samples)
        expected, reference = alone(method, mode, samples)
        torch.testing.assert_close(weights(net), weights(expected), rtol=1e-9, atol=1e-11)
        q, expected_q = opt.posterior(parallel), reference.posterior()
        assert list(q.mean) == list(expected_q.mean)
        for key, variance in q.variance.items():
            torch.testing.assert_close(variance, expected_q.variance[key], rtol=1e-9, atol=0)


def hessian_of_a_quadratic(rank, folder):
    """With other noise on every rank, averaged gradients would halve IVON's estimate: 2 where 4 is true."""
    parameter = torch.nn.Parameter(torch.zeros(40_000))
    net = torch.nn.ParameterList([parameter])
    opt = Method("ivon")(net.named_parameters(), lr=0.0, betas=(0.9, 0.999), num_data=1000, initial_precision=4000.0)
    for _ in range(200):
        with opt.sampled_params():
            parameter.grad = 4.0 * parameter.detach().clone()
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        opt.step()
    estimate = opt.state[parameter]["hessian"].mean().item()
    assert abs(estimate - 4.0) < 0.05, estimate


def sharded(rank, folder):
    """FSDP2: every shard draws its slice, and the run is that of one process."""
    mesh = init_device_mesh("cpu", (2,))
    for method, mode, samples in cases():
        net = wide_net()
        for layer in (net[0], net[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        opt = method(net.named_parameters(), mc_samples=samples)
        run(net, opt, 4, rank, mode, samples)
        expected, reference = alone(method, mode, samples)
        q, expected_q = opt.posterior(), reference.posterior()
        for key in expected_q.mean:
            torch.testing.assert_close(q.mean[key], expected_q.mean[key], rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(q.variance[key], expected_q.variance[key], rtol=1e-9, atol=0)
        full = [p.full_tensor().detach() for p in net.parameters()]
        torch.testing.assert_close(full, [p.detach() for p in expected.parameters()], rtol=1e-9, atol=1e-11)


def sharded_checkpoint(rank, folder):
    """Distributed checkpoints taken by both ranks in the middle of drop-in training resume bit-identically."""
    mesh = init_device_mesh("cpu", (2,))
    for name in SHARDED:
        method = Method(name)

        def make(method=method, scramble=False):
            net = wide_net()
            if scramble:
                with torch.no_grad():
                    for p in net.parameters():
                        p.normal_()
            fully_shard(net, mesh=mesh)
            opt = method(net.named_parameters())
            opt.attach(net)
            return net, opt

        net, opt = make()
        opt.train()
        for step in range(3):
            opt.zero_grad()
            half_loss(net, step, rank).backward()
            opt.step()
        model_sd, opt_sd = dcp_state.get_state_dict(net, opt)
        dcp.save({"model": model_sd, "opt": opt_sd}, checkpoint_id=f"{folder}/{name}")
        run(net, opt, 3, rank, "train", first=3)
        other_net, other = make(scramble=True)
        model_sd, opt_sd = dcp_state.get_state_dict(other_net, other)
        target = {"model": model_sd, "opt": opt_sd}
        dcp.load(target, checkpoint_id=f"{folder}/{name}")
        dcp_state.set_state_dict(other_net, other, model_state_dict=target["model"], optim_state_dict=target["opt"])
        run(other_net, other, 3, rank, "train", first=3)
        for first, second in zip(net.parameters(), other_net.parameters(), strict=True):
            assert torch.equal(first.to_local(), second.to_local())


def low_memory_of_a_sharded_network(rank, folder):
    """``low_memory``: in blocks and drop-in, saved under a sample and loaded into another; an exception in a block."""
    mesh = init_device_mesh("cpu", (2,))

    def make(name, **options):
        net = wide_net()
        fully_shard(net, mesh=mesh)
        opt = Method(name)(net.named_parameters(), low_memory=True, **options)
        opt.attach(net)
        return net, opt

    for name in ("vadam", "ivon"):
        for mode, samples in (("block", 3), ("train", 1)):
            net, opt = make(name, mc_samples=samples)
            run(net, opt, 4, rank, mode, samples)
            expected, _ = alone(Method(name), mode, samples)
            full = [p.full_tensor().detach() for p in net.parameters()]
            torch.testing.assert_close(full, [p.detach() for p in expected.parameters()], rtol=1e-9, atol=1e-11)
        mean = [p.to_local().detach().clone() for p in net.parameters()]
        with pytest.raises(KeyboardInterrupt), opt.sampled_params():
            assert not torch.equal(net[0].weight.to_local(), mean[0])
            raise KeyboardInterrupt
        torch.testing.assert_close([p.to_local().detach() for p in net.parameters()], mean, rtol=1e-12, atol=1e-12)
        net, opt = make(name)
        drop_in(net, opt, range(3))
        model_sd, opt_sd = dcp_state.get_state_dict(net, opt)
        dcp.save({"model": model_sd, "opt": opt_sd}, checkpoint_id=f"{folder}/low-{name}")
        drop_in(net, opt, range(3, 6))
        other, resumed = make(name)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.normal_()
        model_sd, opt_sd = dcp_state.get_state_dict(other, resumed)
        target = {"model": model_sd, "opt": opt_sd}
        dcp.load(target, checkpoint_id=f"{folder}/low-{name}")
        dcp_state.set_state_dict(other, resumed, model_state_dict=target["model"], optim_state_dict=target["opt"])
        drop_in(other, resumed, range(3, 6))
        expected, reference = alone(Method(name), "train", 1, steps=6, stride=1)
        for each, its in ((net, opt), (other, resumed)):
            its.eval()
            full = [p.full_tensor().detach() for p in each.parameters()]
            torch.testing.assert_close(full, [p.detach() for p in expected.parameters()], rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(its.posterior().variance, reference.posterior().variance, rtol=1e-9, atol=0)


def bad_gradient_in_one_shard(rank, folder):
    """All ranks refuse the step, or a rank would wait for the others for ever."""
    mesh = init_device_mesh("cpu", (2,))
    net = wide_net()
    fully_shard(net, mesh=mesh)
    opt = Method("vadam")(net.named_parameters())
    with opt.sampled_params():
        half_loss(net, 0, rank).backward()
    if rank == 1:
        net[0].weight.grad.to_local()[0, 0] = torch.nan
    before = [p.to_local().detach().clone() for p in net.parameters()]
    with pytest.raises(FloatingPointError, match=r"parameter '0.weight' must be finite"):
        opt.step()
    for p, b in zip(net.parameters(), before, strict=True):
        assert torch.equal(p.to_local(), b)


def sharded_on_any_axis(rank, folder):
    """Tensor parallelism shards columns: still the slice of the full noise."""
    mesh = init_device_mesh("cpu", (2,))
    for name in SHARDED:
        for axis in (0, 1):
            whole = torch.linspace(-1, 1, 35, dtype=torch.float64).view(5, 7)
            parameter = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(axis)]))
            plain = torch.nn.Parameter(whole.clone())
            for p in (parameter, plain):
                opt = Method(name)([("w", p)])
                for _ in range(3):
                    with opt.sampled_params():
                        p.grad = (p.detach() * 2.0).clone()
                    opt.step()
            torch.testing.assert_close(parameter.full_tensor(), plain, rtol=1e-12, atol=1e-14)


def posterior_as_prior_of_a_sharded_network(rank, folder):
    """A posterior is full tensors; a sharded network takes its part of them."""
    mesh = init_device_mesh("cpu", (2,))
    net = wide_net()
    q = Method("vadam")(net.named_parameters()).posterior()
    q.mean["0.weight"].add_(1.0)
    other = wide_net()
    fully_shard(other, mesh=mesh)
    opt = Method("vadam")(other.named_parameters(), prior=q)
    torch.testing.assert_close(opt.posterior().mean, q.mean)
    run(other, opt, 2, rank)


def predictions_of_a_sharded_network(rank, folder):
    """Every method, each rank with inputs of its own: as the same network in one process, and training goes on."""
    mesh = init_device_mesh("cpu", (2,))
    x, likelihood = batch(7 + rank)[0].double(), ba.Gaussian(2.0)
    for nested, reshard in ((True, True), (True, False), (False, None)):
        net, alike = wide_net(), wide_net()
        for layer in (net[0], net[2]) if nested else ():
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(net, mesh=mesh, reshard_after_forward=reshard)
        opt = Method("vadam")(net.named_parameters())
        run(net, opt, 2, rank)
        with torch.no_grad():
            net(x)  # leaves whole weights in the root
        q = opt.posterior(net)
        before = [p.full_tensor().clone() for p in net.parameters()]
        for method in ("monte_carlo", "linearized", "moments", "mean"):
            with torch.no_grad():
                net(x)  # so that whole weights are there which are not the posterior's
            options = {"likelihood": likelihood, "method": method, "mc_samples": 4}
            found, expected = ba.predict(net, q, x, **options), ba.predict(alike, q, x, **options)
            torch.testing.assert_close(found.mean, expected.mean, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-9, atol=1e-11)
        for parameter, value in zip(net.parameters(), before, strict=True):
            assert torch.equal(parameter.full_tensor(), value)
        run(net, opt, 2, rank, first=2)
        expected, _ = alone(Method("vadam"), "block", 1, steps=4)
        full = [p.full_tensor().detach() for p in net.parameters()]
        torch.testing.assert_close(full, [p.detach() for p in expected.parameters()], rtol=1e-9, atol=1e-11)


def samples_in_tensors_that_are_sharded_otherwise(rank, folder):
    """Tensor parallelism: each rank keeps its part of a sample, whatever the axis, and then of what was there."""
    mesh = init_device_mesh("cpu", (2,))
    for dim in (0, 1):
        net = wide_net()
        q = ba.DiagonalGaussian(
            {name: p.detach().clone() for name, p in net.named_parameters()},
            {name: torch.full_like(p, 0.01) for name, p in net.named_parameters()},
        )
        whole = net[2].weight.detach().clone()
        net[2].weight = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(dim)]))
        expected = q.sample(3, seed=1)
        with q.applied(net, sample=2, seed=1):
            assert torch.equal(net[2].weight.full_tensor(), expected["2.weight"][2])
            assert torch.equal(net[0].weight, expected["0.weight"][2])
        assert torch.equal(net[2].weight.full_tensor(), whole)


LEARNED = ["vadam learned", "ivon learned", "vprop learned", "vogn learned"]
RANKED = [*sorted(OPTIMIZERS), *LEARNED, "von backtracking", "ivon eager", "vogn momentum"]


def one_sample_for_each_rank(rank, folder):
    """As many samples in one process, each on the data of its rank: for every optimiser, in blocks and drop-in."""
    for name in RANKED:
        method = Method(name)
        for mode, samples, antithetic in (("block", 1, False), ("train", 1, False), ("block", 2, True)):
            net = wide_net()
            parallel = DistributedDataParallel(net)
            options = {"mc_samples": samples, "antithetic": antithetic}
            opt = method(net.named_parameters(), model=parallel, rank_samples=True, **options)
            run(parallel, opt, 4, rank, mode, samples)
            alike = wide_net()
            reference = method(alike.named_parameters(), mc_samples=2 * samples, antithetic=antithetic)
            for step in range(4):
                reference.zero_grad()
                for sample in range(2 * samples):
                    with reference.sampled_params():
                        half_loss(alike, 10 * step + sample // 2, sample % 2).backward()
                reference.step()
            torch.testing.assert_close(weights(net), weights(alike), rtol=1e-9, atol=1e-11)
            q, expected = opt.posterior(parallel), reference.posterior()
            for key, variance in q.variance.items():
                torch.testing.assert_close(variance, expected.variance[key], rtol=1e-9, atol=0)


def ranks_hold_different_samples(rank, folder):
    """Accumulated, scaled and clipped gradients, and a run that goes on from a state, are those of one process."""
    for name in ("vadam", "ivon"):
        method, results = Method(name), []
        for parallel in (True, False):
            net, scaler = wide_net().float(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
            model = DistributedDataParallel(net) if parallel else net
            opt = method(net.named_parameters(), **({"rank_samples": True} if parallel else {"mc_samples": 2}))
            if parallel:
                opt.train()
                held = [torch.zeros_like(weights(net)) for _ in range(2)]
                dist.all_gather(held, weights(net))
                assert not torch.equal(*held)
            for step in range(4):
                if parallel and step == 2:
                    state = copy.deepcopy(opt.state_dict())
                    with torch.no_grad():
                        for state_of in opt.state.values():
                            state_of["mean"].zero_()
                    opt.load_state_dict(state)
                for sample in (rank,) if parallel else (0, 1):
                    with nullcontext() if parallel else opt.sampled_params():
                        for part in range(2):
                            x, y = (t[8 * sample : 8 * (sample + 1)][part::2] for t in batch(step))
                            with model.no_sync() if parallel and part == 0 else nullcontext():
                                scaler.scale(torch.nn.functional.mse_loss(model(x), y) / 2).backward()
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
            opt.eval()
            results.append((weights(net), torch.cat([v.flatten() for v in opt.posterior().variance.values()])))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


def own_samples_are_refused_for_shards(rank, folder):
    net = wide_net()
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    with pytest.raises(ValueError, match="rank_samples must be False for sharded parameters, got one, number 0"):
        Method("vadam")(net.named_parameters(), rank_samples=True)
    with pytest.raises(ValueError, match="hessian must be 'reparameterized' with rank_samples=True, got 'exact'"):
        ba.VON(wide_net().named_parameters(), num_data=8, hessian="exact", rank_samples=True)
    opt = Method("vadam")(wide_net().named_parameters())
    ranked = Method("vadam")(wide_net().named_parameters(), rank_samples=True)
    with pytest.raises(ValueError, match="rank_samples of the state_dict must be True, got False"):
        ranked.load_state_dict(opt.state_dict())


def sharded_after_the_optimiser(rank, folder):
    """Groups are given the shards of their parameters, as by Accelerate: state, priors and samples go along."""
    mesh = init_device_mesh("cpu", (2,))
    method = Method("vadam")
    q = method(wide_net().named_parameters()).posterior()
    q.mean["0.weight"].add_(1.0)
    for mode, steps in (("block", 0), ("train", 0), ("block", 2), ("train", 2)):
        net, alike = wide_net(), wide_net()
        opt, reference = method(net.named_parameters(), prior=q), method(alike.named_parameters(), prior=q)
        opt.attach(net)
        for one, other in ((net, opt), (alike, reference)):
            for step in range(steps):  # the whole batch on every rank
                with other.sampled_params():
                    torch.nn.functional.mse_loss(one(batch(step)[0].double()), batch(step)[1].double()).backward()
                other.step()
                other.zero_grad()
        if mode == "train":
            opt.train()  # the shards are of a sample
            reference.train()
        whole = dict(net.named_parameters())
        for layer in (net[0], net[2], net):
            fully_shard(layer, mesh=mesh)
        shards = {id(whole[name]): parameter for name, parameter in net.named_parameters()}
        for group in opt.param_groups:
            group["params"] = [shards[id(parameter)] for parameter in group["params"]]
        for step in range(3):
            for one, other, rows in ((net, opt, slice(8 * rank, 8 * rank + 8)), (alike, reference, slice(16))):
                x, y = (t.double()[rows] for t in batch(10 + step))
                with other.sampled_params() if mode == "block" else nullcontext():
                    torch.nn.functional.mse_loss(one(x), y).backward()
                other.step()
                other.zero_grad()
        for one in (opt, reference):
            one.eval()
        found, expected = opt.posterior(), reference.posterior()
        for name in expected.mean:
            torch.testing.assert_close(found.mean[name], expected.mean[name], rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(found.variance[name], expected.variance[name], rtol=1e-9, atol=0)
        torch.testing.assert_close(
            [p.full_tensor().detach() for p in net.parameters()],
            [p.detach() for p in alike.parameters()],
            rtol=1e-9,
            atol=1e-11,
        )
        assert len(opt.state) == len(reference.state)


def shard(net):
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return net


def share_of_loss(net, step):
    """Of the ranks that there are: their mean is the loss of the whole batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = (t.double()[16 // size * rank : 16 // size * (rank + 1)] for t in batch(step))
    return torch.nn.functional.mse_loss(net(x), y)


def drop_in(net, opt, steps):
    opt.train()
    for step in steps:
        opt.zero_grad()
        share_of_loss(net, step).backward()
        opt.step()


def save_sharded(rank, folder):
    """Two ranks save in the middle of drop-in training."""
    for name in SHARDED:
        net = shard(wide_net())
        opt = Method(name)(net.named_parameters())
        opt.attach(net)
        drop_in(net, opt, range(3))
        model_sd, opt_sd = dcp_state.get_state_dict(net, opt)
        dcp.save({"model": model_sd, "opt": opt_sd}, checkpoint_id=f"{folder}/reshard-{name}")


def load_resharded(rank, folder):
    """Any number of ranks goes on, to what one process gets that was never interrupted."""
    for name in SHARDED:
        net = wide_net()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        opt = Method(name)(shard(net).named_parameters())
        opt.attach(net)
        model_sd, opt_sd = dcp_state.get_state_dict(net, opt)
        target = {"model": model_sd, "opt": opt_sd}
        dcp.load(target, checkpoint_id=f"{folder}/reshard-{name}")
        dcp_state.set_state_dict(net, opt, model_state_dict=target["model"], optim_state_dict=target["opt"])
        drop_in(net, opt, range(3, 6))
        opt.eval()
        alike = wide_net()
        reference = Method(name)(alike.named_parameters())
        reference.train()
        for step in range(6):
            reference.zero_grad()
            x, y = (t.double() for t in batch(step))
            torch.nn.functional.mse_loss(alike(x), y).backward()
            reference.step()
        reference.eval()
        found, expected = opt.posterior(), reference.posterior()
        for key, mean in expected.mean.items():
            torch.testing.assert_close(found.mean[key], mean, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(found.variance[key], expected.variance[key], rtol=1e-9, atol=0)
