"""trl's ``SFTTrainer`` with the callback, on a tiny causal language model: as a plain loop, evaluated and saved at the
mean.
"""

from contextlib import nullcontext

import pytest
import torch

import bayesadam as ba
from integrations.tasks import BATCH, EPOCHS, Watch, decay, means, weights

trl = pytest.importorskip("trl", reason="trl is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed, which trl needs")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed, which trl needs")
transformers = pytest.importorskip("transformers", reason="transformers is not installed, which trl needs")
pytestmark = pytest.mark.filterwarnings("ignore")  # other people's
WORDS, LENGTH, ROWS = [f"w{number}" for number in range(14)], 5, 64


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    for module in (datasets.config, transformers.utils.hub):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True, raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def tokenizer():
    numbers = {word: number for number, word in enumerate(["<pad>", "<eos>", *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="<pad>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def sentences():
    """Every word is the one before plus one; all of one length."""
    starts = torch.randint(0, 9, (ROWS,), generator=torch.Generator().manual_seed(1)).tolist()
    return [WORDS[start : start + LENGTH] for start in starts]


def tokens():
    """What the trainer makes of them: with an end."""
    numbers = {word: number for number, word in enumerate(WORDS, 2)}
    return torch.tensor([[*(numbers[word] for word in words), 1] for words in sentences()])


def language_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=2 + len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
    )
    return transformers.LlamaForCausalLM(config)


def optimizer(model):
    return ba.Vadam(model.named_parameters(), num_data=ROWS, batch_size=BATCH, lr=0.01)


class InOrder(trl.SFTTrainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def make(folder, *, model=None, schedule=False, callbacks=(), **options):
    from bayesadam.integrations.transformers import PosteriorCallback

    model = language_model() if model is None else model
    opt = optimizer(model)
    quiet = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True, "save_strategy": "no"}
    arguments = trl.SFTConfig(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        **{**quiet, "bf16": False, "max_grad_norm": 0.0, **options},
    )
    rows = datasets.Dataset.from_dict({"text": [" ".join(words) for words in sentences()]})
    trainer = InOrder(
        model,
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer(),
        optimizers=(opt, decay(opt, schedule)),
        callbacks=[PosteriorCallback(), *callbacks],
    )
    return trainer, model, opt


def plain(*, accumulate=1, clip=None, amp=None, schedule=False):
    """A loop in PyTorch."""
    model = language_model()
    opt = optimizer(model)
    scheduler = decay(opt, schedule)
    for _ in range(EPOCHS):
        opt.train()
        for number, rows in enumerate(tokens().split(BATCH), 1):
            with torch.autocast("cpu", dtype=amp) if amp else nullcontext():
                loss = model(input_ids=rows, labels=rows).loss / accumulate
            loss.backward()
            if number % accumulate == 0:
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                opt.step()
                scheduler.step()
                opt.zero_grad()
        opt.eval()
    return weights(model), opt


def assert_as_plain(model, opt, tolerance=1e-5, **options):
    expected, reference = plain(**options)
    assert opt.param_groups[0]["weights"] == "mean"
    torch.testing.assert_close(weights(model), expected, rtol=tolerance, atol=tolerance)
    variances = (torch.cat([v.flatten() for v in o.posterior().variance.values()]) for o in (opt, reference))
    torch.testing.assert_close(*variances, rtol=100 * tolerance, atol=1e-9)


def test_evaluation(tmp_path):
    trainer, model, opt = make(tmp_path, eval_strategy="epoch")
    watch = Watch()
    model.register_forward_pre_hook(lambda *_: None if model.training else watch(model, opt))
    trainer.train()
    trainer.evaluate()
    watch.assert_mean((EPOCHS + 1) * ROWS // BATCH)
    assert_as_plain(model, opt)


def saved_in(folder, model):
    from safetensors.torch import load_file

    saved = load_file(folder / "model.safetensors")
    return torch.cat([saved[name].flatten() for name, _ in model.named_parameters()])


def test_saved(tmp_path):
    """At any step, where the weights hold a sample, and at the end."""
    seen = {}

    class Look(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen[state.global_step] = weights(model).clone(), means(opt).clone()

    trainer, model, opt = make(tmp_path, save_strategy="steps", save_steps=3, callbacks=[Look()])
    trainer.train()
    trainer.save_model(tmp_path / "end")
    assert torch.equal(saved_in(tmp_path / "end", model), weights(model))
    held, mean = seen[3]
    found = saved_in(tmp_path / "checkpoint-3", model)
    assert torch.equal(found, mean)
    assert not torch.equal(found, held)


def test_resume(tmp_path):
    whole, expected, _ = make(tmp_path / "whole")
    whole.train()
    first, *_ = make(tmp_path / "parts", save_strategy="steps", save_steps=5)
    first.train()
    second, model, opt = make(tmp_path / "parts")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-5"))
    assert torch.equal(weights(model), weights(expected))
    assert_as_plain(model, opt)


def test_accumulation(tmp_path):
    trainer, model, opt = make(tmp_path, gradient_accumulation_steps=4)
    trainer.train()
    assert_as_plain(model, opt, accumulate=4)


def test_clipping(tmp_path):
    trainer, model, opt = make(tmp_path, max_grad_norm=0.1)
    trainer.train()
    assert_as_plain(model, opt, clip=0.1)


def test_amp(tmp_path):
    """trl computes the loss in chunks, which bfloat16 rounds otherwise than the model's own loss."""
    trainer, model, opt = make(tmp_path, bf16=True)
    trainer.train()
    assert_as_plain(model, opt, 2e-3, amp=torch.bfloat16)
    assert (weights(model) - plain()[0]).abs().max() > 1e-5


def test_schedulers(tmp_path):
    trainer, model, opt = make(tmp_path, schedule=True)
    trainer.train()
    assert_as_plain(model, opt, schedule=True)


def test_a_posterior_over_adapters(tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(language_model(), config)
    trainer, model, opt = make(tmp_path, model=model)
    trainer.train()
    trainer.save_model(tmp_path / "adapter")
    q = opt.posterior(model)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert set(q.mean) == trained
    assert all("lora" in name for name in trained)
    loaded = peft.PeftModel.from_pretrained(language_model(), tmp_path / "adapter")
    for name, parameter in loaded.named_parameters():
        if name in trained:
            assert torch.equal(parameter, q.mean[name])
