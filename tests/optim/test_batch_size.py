"""The batch size that is found from the training passes of an attached model."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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


def test_a_pass_without_a_backward_pass_does_not_count():
    net = network()
    opt = made(net)
    opt.attach(net)
    opt.train()
    for number in range(6):
        opt.zero_grad()
        value = loss(net, 16, number)
        if number % 2:
            continue
        value.backward()
        opt.step()
    assert found(opt) == 16


def test_two_optimisers_of_a_model_in_turn():
    net = network()
    both = [made(net[0]), made(net[2], seed=1)]
    for opt in both:
        opt.attach(net)
        opt.train()
    for number in range(4):
        for opt in both:
            for each in both:
                each.zero_grad()
            loss(net, 16, number).backward()
            opt.step()
    assert [found(opt) for opt in both] == [16, 16]


@pytest.mark.parametrize("way", ["blocks", "drop-in"])
def test_steps_that_a_scaler_skips_do_not_count(way):
    net = network()
    opt = made(net)
    opt.attach(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    if way == "drop-in":
        opt.train()
    for number in range(12):
        if way == "drop-in":
            opt.zero_grad()
            scaler.scale(32.0 * loss(net, 16, number)).backward()
        else:
            with opt.sampled_params():
                scaler.scale(32.0 * loss(net, 16, number)).backward()
        scaler.step(opt)
        scaler.update()
    assert scaler.get_scale() < 2.0**127
    assert found(opt) == 16


def test_a_closure_that_failed_does_not_count():
    net = network()
    opt = made(net, mc_samples=2)
    opt.attach(net)
    calls = []

    def closure():
        opt.zero_grad()
        loss(net, 16).backward()
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return torch.zeros(())

    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    opt.step(closure)
    assert found(opt) == 16


def test_several_passes_with_one_backward_pass_and_several_backward_passes():
    net = network()
    opt = made(net)
    opt.attach(net)
    opt.train()
    for _ in range(2):
        first, second = loss(net, 16, 1), loss(net, 16, 2)
        opt.zero_grad()
        (first + second).backward(retain_graph=True)
        first.backward()
        opt.step()
    assert found(opt) == 32


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_model_that_is_computed_again_counts_once(reentrant):
    net = network()
    opt = made(net)
    opt.attach(net)
    opt.train()
    for number in range(2):
        opt.zero_grad()
        x = draw(16, 3, seed=number).requires_grad_()
        checkpoint(net, x, use_reentrant=reentrant).square().mean().backward()
        opt.step()
    assert found(opt) == 16


def test_a_compiled_model():
    torch._dynamo.reset()
    net = network()
    compiled = torch.compile(net, backend="aot_eager")
    opt = made(net)
    opt.attach(compiled)
    opt.train()
    train(opt, compiled, [16] * 2)
    assert found(opt) == 16


def test_outputs_are_saved_as_without_the_optimiser():
    net = network()
    opt = made(net)
    opt.attach(net)
    opt.train()
    torch.save(net(draw(4, 3)), io.BytesIO())
