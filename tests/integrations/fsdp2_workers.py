"""What two ranks do in the tests of Accelerate with FSDP2: each function trains in both, and rank 0 writes the end."""

import os

import accelerate
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState, PartialState
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from integrations.comparison import spoil
from integrations.tasks import BATCH, EPOCHS, decay, loader, network, optimizer


def full(tensors):
    """All of them, in one vector that every rank has."""
    return torch.cat([(t.full_tensor() if isinstance(t, DTensor) else t).detach().flatten() for t in tensors])


def begin(plugin, **options):
    """An accelerator on FSDP2. Accelerate ignores the plugin on CPUs, so that its state is told what it does on GPUs.

    All that follows (``prepare``, ``accumulate``, ``clip_grad_norm_``, ``save_state``) is Accelerate's own.
    """
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin, **options)
    for shared in (AcceleratorState._shared_state, PartialState._shared_state):
        shared["distributed_type"] = accelerate.DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = plugin
    if accelerator.mixed_precision != "no":
        plugin.set_mixed_precision(accelerator.mixed_precision)
    assert accelerator.is_fsdp2
    return accelerator


class Run:
    def __init__(self, *, accumulate=1, precision="no", schedule=False, state="SHARDED_STATE_DICT", **options):
        plugin = accelerate.FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=10, state_dict_type=state
        )
        split = accelerate.DataLoaderConfiguration(split_batches=True)  # else schedulers step once for every rank
        options_of_it = {"gradient_accumulation_steps": accumulate, "mixed_precision": precision}
        self.accelerator = begin(plugin, dataloader_config=split, **options_of_it)
        model = network()
        self.opt = optimizer(model, **options)
        self.opt.follow(model)
        prepared = self.accelerator.prepare(model, self.opt, loader(), decay(self.opt, schedule))
        self.model, self.wrapped, self.loader, self.scheduler = prepared
        assert all(isinstance(p, DTensor) for p in self.model.parameters())
        self.at_mean = []

    def train(self, *, epochs=EPOCHS, first=0, clip=None):
        for _ in range(first, epochs):
            self.model.train()
            for x, y in self.loader:
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(F.mse_loss(self.model(x), y))
                    if self.accelerator.sync_gradients and clip is not None:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), clip)
                    self.wrapped.step()
                    self.scheduler.step()
                    self.wrapped.zero_grad()
            self.model.eval()
            for x, _ in self.loader:
                self.model(x)
                self.at_mean.append(bool(torch.equal(full(self.model.parameters()), self.means())))
        return self

    def means(self):
        return full(self.opt.state[p]["mean"] for group in self.opt.param_groups for p in group["params"])

    def end(self):
        return {
            "held": self.opt.param_groups[0]["weights"],
            "weights": full(self.model.parameters()),
            "variance": full(self.opt.posterior(self.model).variance.values()),
            "at_mean": self.at_mean,
        }


def write(folder, name, found):
    if dist.get_rank() == 0:
        torch.save(found, f"{folder}/{name}.pt")


def trained(rank, folder):
    """Whole trainings, by the name of their test."""
    write(folder, "evaluation", Run().train().end())
    write(folder, "way", Run(accumulate=4, schedule=True).train(clip=0.1).end())


def saved(rank, folder):
    """``save_model`` while the weights hold a sample."""
    run = Run().train(epochs=1)
    mean = full(run.model.parameters())
    run.model.train()
    run.accelerator.save_model(run.model, f"{folder}/model")
    found = {"mean": mean, "sample": full(run.model.parameters())}
    if rank == 0:
        tensors = load_file(f"{folder}/model/model.safetensors")
        found["saved"] = torch.cat([tensors[name].flatten() for name, _ in run.model.named_parameters()])
    write(folder, "saved", found)


def resumed(rank, folder):
    """``save_state`` while the weights hold a sample; the run goes on, and another one from there."""
    for state in ("SHARDED_STATE_DICT", "FULL_STATE_DICT"):
        run = Run(state=state).train(epochs=1)
        run.model.train()
        run.accelerator.save_state(f"{folder}/{state}")
        run.train(first=1)
        other = Run(state=state)
        spoil(other.model)
        other.accelerator.load_state(f"{folder}/{state}")
        other.train(first=1)
        write(folder, f"resume-{state}", [run.end(), other.end()])


def mixed(rank, folder):
    """bfloat16: as a loop in PyTorch whose layers are sharded with the same policy."""
    run = Run(precision="bf16").train()
    model = network()
    low = torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low, output_dtype=low)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (*(layer for layer in model if isinstance(layer, torch.nn.Linear)), model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    opt = optimizer(model)
    half = slice(BATCH // 2 * rank, BATCH // 2 * (rank + 1))
    for _ in range(EPOCHS):
        opt.train()
        for x, y in loader():
            with torch.autocast("cpu", dtype=low):
                output = model(x[half])
            F.mse_loss(output.float(), y[half]).backward()
            opt.step()
            opt.zero_grad()
        opt.eval()
    reference = {"weights": full(model.parameters()), "variance": full(opt.posterior(model).variance.values())}
    write(folder, "amp", [run.end(), reference])
