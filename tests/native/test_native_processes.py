"""The cache of compiled libraries in several processes, and its damage, which each process must survive.

``python tests/native/test_native_processes.py 100`` damages the kernels of a training 200 times: 100 files are cut, and
in 100 a byte is changed. It prints how many of the trainings gave other weights, and how their processes ended.
"""

import argparse
import os
import random
import shutil
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import native, noise
from processes import PROCESSES

pytestmark = pytest.mark.skipif(not native.has_compiler(), reason="needs a C++ compiler")


def draw():
    return noise.normal(1, 2, 3, 4, (10_000,))


def train():
    net = nn.Linear(30, 40)
    with torch.no_grad():
        for param in net.parameters():
            param.fill_(0.5)
    opt = ba.Vadam(net.named_parameters(), num_data=50.0, compile=True)
    opt.train()
    for _ in range(2):
        net(torch.ones(3, 30)).square().sum().backward()
        opt.step()
        opt.zero_grad()
    opt.eval()
    return torch.cat([param.detach().flatten() for param in net.parameters()])


def work_in(folder, work, result):
    os.environ["BAYESADAM_CACHE"] = str(folder)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    torch.save(work(), result)


def in_a_process(*arguments):
    process = PROCESSES.Process(target=work_in, args=arguments)
    process.start()
    return process


def damage_all(work, place, count):
    """Count what happened to the damaged files of a cache, ``count`` of them for each kind of damage.

    Each trial starts from a complete cache, damages one of its files and does the work in a new process.
    """
    rng = random.Random(0)
    whole, cache, result = place / "whole", place / "cache", place / "result"
    in_a_process(whole, work, result).join()
    expected, outcomes = torch.load(result), Counter()
    for trial in range(2 * count):
        result.unlink(missing_ok=True)
        shutil.copytree(whole, cache)
        path = rng.choice(sorted(cache.iterdir()))
        content = bytearray(path.read_bytes())
        if trial < count:
            kind, content = "cut", content[: rng.randrange(len(content))]
        else:
            kind = "changed byte"
            content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        path.write_bytes(content)
        process = in_a_process(cache, work, result)
        process.join()
        right = result.exists() and torch.equal(torch.load(result), expected)
        outcomes[kind, "right" if right else "wrong", process.exitcode] += 1
        assert not right or sorted(path.name for path in cache.iterdir()) == sorted(os.listdir(whole))
        shutil.rmtree(cache)
    return outcomes


def test_damaged_libraries_are_compiled_again(tmp_path):
    """Damage ended the process by a signal, or PyTorch's operations were used from then on."""
    assert damage_all(draw, tmp_path, 6) == {("cut", "right", 0): 6, ("changed byte", "right", 0): 6}


def test_processes_that_compile_at_once(tmp_path):
    processes = [in_a_process(tmp_path / "cache", draw, tmp_path / str(number)) for number in range(3)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".so"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, help="files to cut, and files to change")
    with tempfile.TemporaryDirectory() as scratch:
        for outcome, number in damage_all(train, Path(scratch), parser.parse_args().count).items():
            print(number, *outcome)
