"""PEFT: a posterior over the adapters of a tiny causal language model, trained, saved, loaded and merged."""

import pytest
import torch

import bayesadam as ba

peft = pytest.importorskip("peft", reason="peft is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TOKENS, LENGTH = 16, 6


def base():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    return transformers.LlamaForCausalLM(config)


def adapted():
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(base(), config)


def sequences(step, count=8):
    """Every token is the one before plus one, of half of the tokens."""
    start = torch.randint(0, TOKENS, (count, 1), generator=torch.Generator().manual_seed(step))
    return (start + torch.arange(LENGTH)) % TOKENS


def trained(*, steps=10, first=0, lr=0.01):
    model = adapted()
    opt = ba.Vadam(model.named_parameters(), num_data=100, batch_size=8, lr=lr)
    opt.follow(model)
    model.train()
    for step in range(first, first + steps):
        tokens = sequences(step)
        model(input_ids=tokens, labels=tokens).loss.backward()
        opt.step()
        opt.zero_grad()
    model.eval()
    return model, opt


def test_the_adapters_alone_are_random_and_learn():
    model, opt = trained(steps=60, lr=0.05)
    q = opt.posterior()
    assert q.mean.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in q.mean)
    frozen = dict(base().named_parameters())
    inside = model.get_base_model()
    assert torch.equal(inside.lm_head.weight, frozen["lm_head.weight"])
    with torch.no_grad():
        tokens = sequences(1000, 32)
        before = adapted().eval()(input_ids=tokens, labels=tokens).loss
        after = model(input_ids=tokens, labels=tokens).loss
    assert after < before - 0.05


def test_a_saved_adapter_loads_in_plain_peft(tmp_path):
    """While the weights hold a sample: what is saved is the mean."""
    model, opt = trained()
    tokens = sequences(1000)
    expected = model(input_ids=tokens).logits
    model.train()
    held = model(input_ids=tokens).logits
    assert not torch.allclose(held, expected)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=tokens).logits, expected)
    q = opt.posterior(model)
    model.eval()
    with q.applied(model, sample=3):
        model.save_pretrained(tmp_path / "sample")
        expected = model.eval()(input_ids=tokens).logits.detach()
    torch.testing.assert_close(opt.posterior(model).mean, q.mean)
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "sample").eval()
    torch.testing.assert_close(loaded(input_ids=tokens).logits, expected)


def test_tokens_are_predicted():
    model, opt = trained()
    tokens = sequences(1000, 4)
    for method in ("monte_carlo", "linearized"):
        pred = ba.predict(
            model,
            opt.posterior(),
            {"input_ids": tokens},
            likelihood=ba.Categorical(),
            output=lambda out: out.logits,
            mc_samples=4,
            method=method,
        )
        assert pred.probs.shape == (4, LENGTH, TOKENS)
        torch.testing.assert_close(pred.probs.sum(-1), torch.ones(4, LENGTH))
        assert pred.mutual_information.shape == (4, LENGTH)
        assert pred.mutual_information.min() > 0


def test_adapters_are_merged_by_precision(tmp_path):
    first, second = (trained(first=start)[1].posterior() for start in (0, 100))
    merged = ba.merge([first, second])
    for name, mean in merged.mean.items():
        precisions = [1 / q.variance[name].double() for q in (first, second)]
        expected = sum(p * q.mean[name] for p, q in zip(precisions, (first, second), strict=True)) / sum(precisions)
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-7)
    model = adapted()
    with merged.applied(model):
        model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path)
    state = {
        name.replace(".weight", ".default.weight"): value
        for name, value in peft.get_peft_model_state_dict(loaded).items()
    }
    torch.testing.assert_close(state, merged.mean)
