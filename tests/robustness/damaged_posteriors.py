"""Damages posteriors at random and reads them: they are refused with the one error, or they are what was written.

``python tests/robustness/damaged_posteriors.py [trials] [seed]`` prints how many of each way to damage a file were
refused and how many read, and every other error. Exit code 1 if there is one.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

import bayesadam as ba
from bayesadam.files import DamagedFile
from bayesadam.posterior import BernoulliPosterior, LowRankGaussian, PartialGaussian

KEY = "bayesadam"
DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "U64", "U32", "U16", "U8", "I8", "BOOL", "C64", "X")
VALUES = (
    None, True, -1, 0, 5, 2**70, 10**400, 1e308, float("nan"), float("inf"), "", "x", "\ud800", [], [0], {}, {"a": 1},
    [[]] * 3, ["mean/w"], "DiagonalGaussian", "Mixture", [None, 1],
)  # fmt: skip


def posteriors():
    """One of every kind."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    mean = {"w": normal(2, 3), "b": normal(3)}
    variance = {name: value.square() + 0.1 for name, value in mean.items()}
    diagonal = ba.DiagonalGaussian(mean, variance, hyperparameters={"method": "vadam", "lr": 0.1})
    return [
        diagonal,
        ba.DenseGaussian(mean, torch.eye(9) + 0.1),
        LowRankGaussian(mean, variance, {name: normal(2, *value.shape) for name, value in mean.items()}),
        BernoulliPosterior({name: value.sigmoid() for name, value in mean.items()}, mean),
        PartialGaussian(diagonal, {"fixed": normal(2)}),
        ba.Mixture([diagonal, ba.DiagonalGaussian(variance, variance)]),
    ]


def flipped(content, rng):
    broken = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 20))):
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    return bytes(broken)


def cut(content, rng):
    return content[: rng.randrange(len(content))]


def longer(content, rng):
    return content + rng.randbytes(rng.randrange(1, 100))


def blanked(content, rng):
    begin = rng.randrange(len(content))
    length = rng.randrange(1, 200)
    return content[:begin] + bytes(len(content[begin : begin + length])) + content[begin + length :]


def moved(content, rng):
    begin, length = rng.randrange(len(content)), rng.randrange(1, 64)
    return content[:begin] + content[begin + length :] + content[begin : begin + length]


def replaced(content, rng):
    begin, length = rng.randrange(len(content)), rng.randrange(1, 64)
    return content[:begin] + rng.randbytes(len(content[begin : begin + length])) + content[begin + length :]


def header(content, rng):
    """Another value somewhere in the header of safetensors: dtypes, shapes with many axes, offsets."""
    length = int.from_bytes(content[:8], "little")
    record = json.loads(content[8 : 8 + length])
    name = rng.choice([name for name in record if name != "__metadata__"])
    what = rng.choice(("dtype", "shape", "data_offsets", "gone", "axes", "value"))
    if what == "dtype":
        record[name]["dtype"] = rng.choice(DTYPES)
    elif what == "axes":
        record[name]["shape"] += [1] * rng.choice((1, 60, 65, 200))
    elif what == "gone":
        record[f"x{name}"] = record.pop(name)
    elif what == "value":
        record[name] = rng.choice(VALUES)
    else:
        record[name][what] = rng.choice(([], [0], [2**62, 2**62], [-1, 3], [0, 8], [3, 0], None, "x"))
    return packed(record, content[8 + length :])


def told(content, rng):
    """Another value somewhere in the library's own header."""
    length = int.from_bytes(content[:8], "little")
    record = json.loads(content[8 : 8 + length])
    if rng.random() < 0.05:
        record["__metadata__"][KEY] = rng.choice(("", "[", "null", '{"a":' * 60_000, "[" * 60_000 + "]" * 60_000))
        return packed(record, content[8 + length :])
    fields = json.loads(record["__metadata__"][KEY])
    change(fields, rng)
    record["__metadata__"][KEY] = json.dumps(fields)
    return packed(record, content[8 + length :])


def change(record, rng):
    """Replace, remove or rename one entry, at a random depth."""
    name = rng.choice(list(record))
    inner = record[name]
    if isinstance(inner, dict) and inner and rng.random() < 0.7:
        return change(inner, rng)
    if isinstance(inner, list) and inner and rng.random() < 0.7:
        place = rng.randrange(len(inner))
        if isinstance(inner[place], dict) and inner[place] and rng.random() < 0.7:
            return change(inner[place], rng)
        inner[place] = rng.choice(VALUES)
    elif rng.random() < 0.2:
        del record[name]
    elif rng.random() < 0.2:
        record[f"{name}x"] = record.pop(name)
    else:
        record[name] = rng.choice(VALUES)
    return None


def packed(record, data):
    text = json.dumps(record).encode()
    return len(text).to_bytes(8, "little") + text + data


WAYS = {way.__name__: way for way in (flipped, cut, longer, blanked, moved, replaced, header, told)}


def same(found, expected):
    tensors = expected.tensors()
    return type(found) is type(expected) and all(
        name in tensors and torch.equal(value, tensors[name]) for name, value in found.tensors().items()
    )


def run(trials, seed=0):
    """How often which way of damage had which outcome, and descriptions of what should not be."""
    counts, wrong = Counter(), []
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.safetensors"
        whole = []
        for posterior in posteriors():
            posterior.save(path)
            whole.append((posterior, path.read_bytes()))
        for trial in range(trials):
            posterior, content = rng.choice(whole)
            way = rng.choice(list(WAYS))
            damaged = WAYS[way](content, rng)
            path.write_bytes(damaged)
            try:
                found = ba.load_posterior(path)
                outcome = "read, the same" if same(found, posterior) else "read, another"
                sample = found.sample(1)
                if not all(value.isfinite().all() for value in sample.values()):
                    outcome += ", not finite"
            except DamagedFile:
                outcome = "refused"
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                outcome = "another error"
                wrong.append(f"trial {trial}, {way}, {type(posterior).__name__}: {type(error).__name__}: {error}")
            counts[way, outcome] += 1
            if outcome.startswith("read, another"):
                wrong.append(f"trial {trial}, {way}, {type(posterior).__name__}: read as another")
    return counts, wrong


def main():
    trials, seed = (int(value) for value in (*sys.argv[1:], *("100000", "0")[len(sys.argv) - 1 :]))
    counts, wrong = run(trials, seed)
    for key, count in sorted(counts.items()):
        print(f"{count:8,}  {', '.join(key)}")
    for line in wrong[:50]:
        print(line[:300])
    print(f"{trials:,} damaged posteriors: {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
