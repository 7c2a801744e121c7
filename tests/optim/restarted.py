"""What ``torchrun`` runs: sharded training that saves after every step, and whose second rank is killed once."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as dcp_state

from optim.conftest import Method
from optim.workers import drop_in, shard, wide_net

STEPS, KILLED = 6, 3


def main(folder):
    torch.set_num_threads(1)
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous-{attempt}",  # in the agent's store are addresses of the dead
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    net = shard(wide_net())
    opt = Method("ivon")(net.named_parameters())
    opt.attach(net)
    complete = sorted(int(path.parent.name) for path in Path(folder).glob("*/.metadata"))
    first = 0
    if complete:
        first = complete[-1]
        model_sd, opt_sd = dcp_state.get_state_dict(net, opt)
        target = {"model": model_sd, "opt": opt_sd}
        dcp.load(target, checkpoint_id=f"{folder}/{first}")
        dcp_state.set_state_dict(net, opt, model_state_dict=target["model"], optim_state_dict=target["opt"])
    for step in range(first, STEPS):
        drop_in(net, opt, [step])
        if step == KILLED and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        model_sd, opt_sd = dcp_state.get_state_dict(net, opt)
        dcp.save({"model": model_sd, "opt": opt_sd}, checkpoint_id=f"{folder}/{step + 1}")
    opt.eval()
    q = opt.posterior()
    if dist.get_rank() == 0:
        q.save(f"{folder}/posterior.safetensors")
        Path(folder, "restarts").write_text(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} from {first}")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
