"""The batch size that is found from the training passes of an attached model."""

import copy
import io

import pytest
import torch
from torch import nn

import bayesadam as ba

N = 100


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def made(net, optimizer=ba.Vadam, **options):
    return optimizer(net.named_parameters(), num_data=N, **options)


def loss(net, rows, seed=0):
    return net(draw(rows, 3, seed=seed)).square().mean()


def found(opt):
    return opt.param_groups[0]["batch_size"]


def train(opt, net, sizes):
    for number, rows in enumerate(sizes):
        opt.zero_grad()
        loss(net, rows, number).backward()
        opt.step()


@pytest.mark.parametrize("optimizer", [ba.Vadam, ba.IVON])
def test_training_is_that_with_the_number_given(optimizer):
    weights = []
    for given in (None, 16):
        net = network()
        opt = made(net, optimizer, lr=0.01, batch_size=given)
        opt.follow(net)
        net.train()
        train(opt, net, [16] * 5)
        net.eval()
        assert found(opt) == 16
        weights.append(torch.cat([v.flatten() for v in opt.posterior().variance.values()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("way", ["blocks", "closure", "drop-in"])
def test_accumulated_passes_are_added_up_and_samples_are_not(way):
    net = network()
    samples = 1 if way == "drop-in" else 2
    opt = made(net, mc_samples=samples)
    opt.attach(net)

    def accumulate():
        for number in range(3):
            (loss(net, 5, number) / 3).backward()

    def closure():
        opt.zero_grad()
        accumulate()
        return torch.zeros(())

    for _ in range(2):
        opt.zero_grad()
        if way == "blocks":
            for _ in range(samples):
                with opt.sampled_params():
                    accumulate()
            opt.step()
        elif way == "closure":
            opt.step(closure)
        else:
            opt.train()
            accumulate()
            opt.step()
        assert found(opt) == 15


def test_steps_of_different_sizes_have_the_harmonic_mean():
    net = network()
    opt = made(net)
    opt.attach(net)
    opt.train()
    sizes = [16, 16, 16, 4] * 3
    train(opt, net, sizes)
    assert found(opt) == pytest.approx(len(sizes) / sum(1 / size for size in sizes), rel=0.011)
    opt.eval()


def test_a_number_that_was_given_stays():
    net = network()
    opt = made(net, batch_size=7)
    opt.attach(net)
    opt.train()
    train(opt, net, [16] * 2)
    assert found(opt) == 7
    other = network()
    later = made(other)
    later.attach(other)
    later.train()
    train(later, other, [16])
    later.param_groups[0]["batch_size"] = 9
    train(later, other, [16] * 3)
    assert found(later) == 9
    with pytest.raises(ValueError, match="batch_size must be None or a positive, finite number, got 0"):
        made(network(), batch_size=0)


def test_without_a_model_it_stays_unknown():
    net = network()
    opt = made(net)
    opt.train()
    train(opt, net, [16] * 2)
    assert found(opt) is None


class Dict(nn.Module):
    """As the models of Hugging Face are called, with outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, input_ids, *, pooled=True):
        states = self.head(self.embedding(input_ids))
        return {"loss": states.mean(), "logits": states.mean(1) if pooled else states}


@pytest.mark.parametrize(("pooled", "expected"), [(True, 6), (False, None)])
def test_outputs_with_several_positions_do_not_tell_the_batch_size(pooled, expected):
    net = Dict()
    opt = made(net)
    opt.attach(net)
    opt.train()
    net(input_ids=torch.ones(6, 3, dtype=torch.int64), pooled=pooled)["loss"].backward()
    opt.step()
    assert found(opt) == expected


def test_only_training_passes_at_a_sample_count():
    net = network()
    opt = made(net)
    opt.attach(net)
    loss(net, 50)  # at the mean
    opt.train()
    with torch.no_grad():
        loss(net, 50)
    net.eval()
    loss(net, 50)
    net.train()
    train(opt, net, [16])
    assert found(opt) == 16


def test_a_wrapped_model_and_a_second_call_count_once():
    torch._dynamo.reset()
    net = network()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    opt = made(net)
    opt.attach(net)
    opt.attach(compiled)
    opt.train()
    train(opt, compiled, [16] * 2)
    assert found(opt) == 16


def test_a_checkpoint_goes_on_with_what_was_found():
    net = network()
    opt = made(net)
    opt.attach(net)
    opt.train()
    train(opt, net, [16, 4])
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    other = network()
    other.load_state_dict(net.state_dict())
    resumed = made(other)
    resumed.load_state_dict(torch.load(file))
    resumed.attach(other)
    assert found(resumed) == found(opt)
    for one, its in ((opt, net), (resumed, other)):
        one.train()
        train(one, its, [4, 4])
    assert found(resumed) == found(opt) == pytest.approx(4 / (1 / 16 + 3 / 4), rel=0.011)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_models_are_copied_pickled_and_saved_without_the_optimiser():
    net = network()
    opt = made(net)
    opt.attach(net)
    opt.train()
    train(opt, net, [16])
    copied = copy.deepcopy(net)
    loss(copied, 50)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loss(torch.load(file, weights_only=False), 50)
    train(opt, net, [16])
    assert found(opt) == 16
