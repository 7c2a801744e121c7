"""What the ranks do in the distributed tests; each function runs in all processes and raises where it is wrong."""

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
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import bayesadam as ba
from bayesadam.modules.sharding import full
from modules import module_of
from optim.methods import SHARDED, Method, batch, make_step, weights

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
CASES = [(name, mode, samples) for name in SHARDED for mode, samples in (("block", 1), ("block", 3), ("train", 1))]


def wide_net():
    """Sizes that two ranks cannot share evenly."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def shard(net, layers=()):
    for layer in (*layers, net):
        fully_shard(layer, mesh=mesh())
    return net


def loss_on(net, step, rows=slice(None)):
    x, y = (t.double()[rows] for t in batch(step))
    return mse_loss(net(x), y)


def share_of_loss(net, step):
    """The mean over the ranks is the loss of the whole batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return loss_on(net, step, slice(16 // size * rank, 16 // size * (rank + 1)))


def train(net, opt, steps, mode="block", loss=share_of_loss):
    for step in steps:
        make_step(opt, lambda step=step: loss(net, step), mode)


def alone(name, steps, mode="block", **options):
    """The same training in one process on the whole batch."""
    net = wide_net()
    opt = Method(name)(net, **options)
    train(net, opt, steps, mode, loss_on)
    opt.eval()
    return opt


def assert_alike(opt, reference, model=None):
    opt.eval()
    q, expected = opt.posterior(model), reference.posterior()
    assert list(q.mean) == list(expected.mean)
    for name, mean in expected.mean.items():
        torch.testing.assert_close(q.mean[name], mean, **CLOSE)
        torch.testing.assert_close(q.variance[name], expected.variance[name], rtol=1e-9, atol=0)


def save(net, opt, path, options=None):
    model, optimizer = dcp_state.get_state_dict(net, opt, options=options)
    dcp.save({"model": model, "opt": optimizer}, checkpoint_id=path)


def load(net, opt, path, options=None):
    model, optimizer = dcp_state.get_state_dict(net, opt, options=options)
    target = {"model": model, "opt": optimizer}
    dcp.load(target, checkpoint_id=path)
    model, optimizer = target["model"], target["opt"]
    dcp_state.set_state_dict(net, opt, model_state_dict=model, optim_state_dict=optimizer, options=options)


def data_parallel(rank, folder):
    """All ranks draw the same noise, so averaging gradients is exact: as one process on the whole batch."""
    for name, mode, samples in CASES:
        parallel = DistributedDataParallel(wide_net())
        opt = Method(name)(parallel, parallel.module.named_parameters(), mc_samples=samples)
        train(parallel, opt, range(3), mode)
        assert_alike(opt, alone(name, range(3), mode, mc_samples=samples), parallel)


def sharded(rank, folder):
    """FSDP2: every shard draws its slice, and the run is that of one process, also after an exception in a block."""
    for number, (name, mode, samples) in enumerate(CASES):
        net = wide_net()
        shard(net, (net[0], net[2]) if number % 2 else ())
        opt = Method(name)(net, mc_samples=samples)
        train(net, opt, range(3), mode)
        assert_alike(opt, alone(name, range(3), mode, mc_samples=samples))
        mean = [p.to_local().detach().clone() for p in net.parameters()]
        with pytest.raises(KeyboardInterrupt), opt.sampled_params():
            assert not torch.equal(net[0].weight.to_local(), mean[0])
            raise KeyboardInterrupt
        torch.testing.assert_close([p.to_local().detach() for p in net.parameters()], mean, rtol=1e-12, atol=1e-12)


def sharded_on_any_axis(rank, folder):
    """Tensor parallelism shards columns: still the slice of the full noise, also of a posterior's samples."""
    whole = torch.linspace(-1, 1, 35, dtype=torch.float64).view(5, 7)
    for name in ("vadam", "ivon", "von elementwise"):
        for axis in (0, 1):
            parameter = torch.nn.Parameter(distribute_tensor(whole, mesh(), [Shard(axis)]))
            plain = torch.nn.Parameter(whole.clone())
            for p in (parameter, plain):
                opt = Method(name)(None, [("w", p)])
                for _ in range(3):
                    with opt.sampled_params():
                        p.grad = (p.detach() * 2.0).clone()
                    opt.step()
            torch.testing.assert_close(parameter.full_tensor(), plain, rtol=1e-12, atol=1e-14)
    for axis in (0, 1):
        net = wide_net().append(torch.nn.Embedding(3, 4, padding_idx=1, dtype=torch.float64))
        means = {name: p.detach().clone() for name, p in net.named_parameters()}
        q = ba.DiagonalGaussian(means, {name: torch.full_like(mean, 0.01) for name, mean in means.items()})
        for number in (2, 3):
            shards = distribute_tensor(means[f"{number}.weight"], mesh(), [Shard(axis)])
            net[number].weight = torch.nn.Parameter(shards)
        expected = q.sample(3, seed=1)
        expected["3.weight"][:, 1] = means["3.weight"][1]
        with q.applied(net, sample=2, seed=1):
            assert all(torch.equal(full(p), expected[name][2]) for name, p in net.named_parameters())
        assert all(torch.equal(full(p), means[name]) for name, p in net.named_parameters())


def sharded_checkpoint(rank, folder):
    """Taken by both ranks in the middle of drop-in training, it resumes to the bit."""
    for name in SHARDED:
        runs = []
        for _ in range(2):
            net = shard(wide_net())
            opt = Method(name)(net)
            opt.attach(net)
            runs.append((net, opt))
        (net, opt), (other, resumed) = runs
        train(net, opt, range(3), "train")
        save(net, opt, f"{folder}/{name}")
        with torch.no_grad():
            for p in other.parameters():
                p.normal_()
        load(other, resumed, f"{folder}/{name}")
        for each, its in runs:
            train(each, its, range(3, 5), "train")
            its.eval()
        for first, second in zip(net.parameters(), other.parameters(), strict=True):
            assert torch.equal(first.to_local(), second.to_local())


def save_sharded(rank, folder):
    """Two ranks save in the middle of drop-in training."""
    for name in SHARDED:
        net = shard(wide_net())
        opt = Method(name)(net)
        opt.attach(net)
        train(net, opt, range(3), "train")
        save(net, opt, f"{folder}/reshard-{name}")


def load_resharded(rank, folder):
    """Any number of ranks goes on, to what one process gets that was never interrupted."""
    for name in SHARDED:
        net = wide_net()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        shard(net)
        opt = Method(name)(net)
        opt.attach(net)
        load(net, opt, f"{folder}/reshard-{name}")
        train(net, opt, range(3, 6), "train")
        assert_alike(opt, alone(name, range(6), "train"))


def bad_gradient_in_one_shard(rank, folder):
    """All ranks refuse the step, or a rank would wait for the others for ever."""
    net = shard(wide_net())
    opt = Method("vadam")(net)
    with opt.sampled_params():
        share_of_loss(net, 0).backward()
    if rank == 1:
        net[0].weight.grad.to_local()[0, 0] = torch.nan
    before = [p.to_local().detach().clone() for p in net.parameters()]
    with pytest.raises(FloatingPointError, match=r"parameter '0.weight' must be finite"):
        opt.step()
    assert all(torch.equal(p.to_local(), b) for p, b in zip(net.parameters(), before, strict=True))


def predictions_of_a_sharded_network(rank, folder):
    """Each rank with inputs of its own: as the same network in one process, and training goes on."""
    x, options = batch(7 + rank)[0].double(), {"likelihood": ba.Gaussian(2.0), "mc_samples": 4}
    net, alike = wide_net(), wide_net()
    shard(net, (net[0], net[2]))
    opt = Method("vadam")(net)
    train(net, opt, range(2))
    q = opt.posterior(net)
    for method in ("monte_carlo", "linearized", "moments", "mean"):
        with torch.no_grad():
            net(x)  # so that whole weights are there which are not the posterior's
        found, expected = (ba.predict(each, q, x, method=method, **options) for each in (net, alike))
        torch.testing.assert_close(found.mean, expected.mean, **CLOSE)
        torch.testing.assert_close(found.epistemic, expected.epistemic, **CLOSE)
    train(net, opt, range(2, 4))
    assert_alike(opt, alone("vadam", range(4)))


def sharded_after_the_optimiser(rank, folder):
    """Groups are given the shards of their parameters, as by Accelerate: state, priors and samples go along."""
    q = Method("vadam")(wide_net()).posterior()
    q.mean["0.weight"].add_(1.0)
    for mode in ("block", "train"):
        net = wide_net()
        opt = Method("vadam")(net, prior=q)
        opt.attach(net)
        whole = dict(net.named_parameters())
        shard(net, (net[0], net[2]))
        shards = {id(whole[name]): parameter for name, parameter in net.named_parameters()}
        for group in opt.param_groups:
            group["params"] = [shards[id(parameter)] for parameter in group["params"]]
        train(net, opt, range(3), mode)
        reference = alone("vadam", range(3), prior=q)
        assert_alike(opt, reference)
        assert len(opt.state) == len(reference.state)


# A sample for each rank


def one_sample_for_each_rank(rank, folder):
    """As many samples in one process, each on the data of its rank: in blocks and drop-in."""
    for name in ("vadam", "ivon", "vogn momentum", "von backtracking", "ngvi", "bbb", "natural_vadam"):
        for mode, samples, antithetic in (("train", 1, False), ("block", 2, True)):
            parallel = DistributedDataParallel(wide_net())
            options = {"mc_samples": samples, "antithetic": antithetic, "rank_samples": True}
            opt = Method(name)(parallel, parallel.module.named_parameters(), **options)
            with parallel.no_sync():
                train(parallel, opt, range(3), mode)
            alike = wide_net()
            reference = Method(name)(alike, mc_samples=2 * samples, antithetic=antithetic)
            for step in range(3):
                reference.zero_grad()
                for sample in range(2 * samples):
                    with reference.sampled_params():
                        loss_on(alike, step, slice(8 * (sample % 2), 8 * (sample % 2) + 8)).backward()
                reference.step()
            assert_alike(opt, reference, parallel)


def scaled_and_clipped_samples_of_ranks(rank, folder):
    """Accumulated, scaled and clipped gradients, and a run that goes on from a state, are those of one process."""
    for name in ("vadam", "ivon"):
        results = []
        for parallel in (True, False):
            net, scaler = wide_net(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
            model = DistributedDataParallel(net) if parallel else net
            opt = Method(name)(net, **({"rank_samples": True} if parallel else {"mc_samples": 2}))
            for step in range(4):
                if parallel and step == 2:
                    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
                for sample in (rank,) if parallel else (0, 1):
                    with opt.sampled_params():
                        if parallel and step == 0:
                            drawn = [torch.zeros_like(weights(net)) for _ in range(2)]
                            dist.all_gather(drawn, weights(net))
                            assert not torch.equal(*drawn)
                        for part in range(2):
                            rows = slice(8 * sample + part, 8 * (sample + 1), 2)
                            with model.no_sync() if parallel else nullcontext():
                                scaler.scale(loss_on(model, step, rows) / 2).backward()
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
            opt.eval()
            results.append(opt)
        assert_alike(*results)


def only_the_second_rank_uses_the_branch(rank, folder):
    def forward(self, x, branch):
        return self.body(x) + self.branch(x) if branch else self.body(x)

    for name in ("vadam", "ivon"):
        results = []
        for parallel in (True, False):
            net = module_of(forward, body=wide_net(), branch=torch.nn.Linear(3, 2).double())
            model = DistributedDataParallel(net, find_unused_parameters=True) if parallel else net
            opt = Method(name)(net, **({"rank_samples": True} if parallel else {"mc_samples": 2}))
            for step in range(3):
                opt.zero_grad()
                for sample in [rank] if parallel else [0, 1]:
                    with opt.sampled_params(), model.no_sync() if parallel else nullcontext():
                        model(batch(step)[0].double(), sample == 1).square().mean().backward()
                opt.step()
            results.append(opt)
        assert_alike(*results)


def own_samples_are_refused(rank, folder):
    with pytest.raises(ValueError, match="rank_samples must be False for sharded parameters, got one, number 0"):
        Method("vadam")(shard(wide_net()), rank_samples=True)
    with pytest.raises(ValueError, match="hessian must be 'reparameterized' with rank_samples=True, got 'exact'"):
        Method("von exact")(wide_net(), rank_samples=True)
    saved = Method("vadam")(wide_net()).state_dict()
    with pytest.raises(ValueError, match="rank_samples of the state_dict must be True, got False"):
        Method("vadam")(wide_net(), rank_samples=True).load_state_dict(saved)
