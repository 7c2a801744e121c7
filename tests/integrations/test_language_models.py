"""A tiny causal language model in trl's ``SFTTrainer``, and posteriors over its adapters with PEFT.

Training is as a plain loop; evaluated, saved, merged and loaded is the mean.
"""

from functools import partial

import pytest
import torch

import bayesadam as ba
from integrations import comparison, tasks
from integrations.comparison import WAYS, Watch, weights
from integrations.hugging_face import (
    QUIET,
    check_as_the_plain_loop,
    check_resume,
    check_saved,
    in_order,
    transformers,
)
from integrations.tasks import BATCH, EPOCHS, decay

trl = pytest.importorskip("trl", reason="trl is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed, which trl needs")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed, which trl needs")
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


def adapted():
    model = language_model()
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


def optimizer(model, lr=0.01):
    """Its loss is a mean over the tokens that are predicted: all words but the first, and the end."""
    return ba.BayesAdam(
        model.named_parameters(), num_data=ROWS * LENGTH, batch_size=BATCH * LENGTH, total_steps=100, lr=lr
    )


def plain(make=language_model, *, rows=None, lr=0.01, **options):
    """The model and its optimiser after a loop in PyTorch."""
    batches = (tokens() if rows is None else rows).split(BATCH)

    def loss_of(model, batch):
        return model(input_ids=batch, labels=batch).loss

    return tasks.plain(make, partial(optimizer, lr=lr), loss_of, batches, follow=True, **options)


def make(folder, *, model=None, schedule=False, callbacks=(), **options):
    model = language_model() if model is None else model
    opt = optimizer(model)
    sizes = {"num_train_epochs": EPOCHS, "per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH}
    arguments = trl.SFTConfig(str(folder), **{**QUIET, **sizes, "bf16": False, **options})
    rows = datasets.Dataset.from_dict({"text": [" ".join(words) for words in sentences()]})
    optimizers = opt, decay(opt, schedule)
    trainer = in_order(trl.SFTTrainer, model, arguments, rows, optimizers, callbacks, processing_class=tokenizer())
    return trainer, model, opt


assert_as_plain = partial(comparison.assert_as_plain, plain=plain)


# trl


def test_evaluation(tmp_path):
    trainer, model, opt = make(tmp_path, eval_strategy="epoch")
    watch = Watch()
    model.register_forward_pre_hook(lambda *_: None if model.training else watch(model, opt))
    trainer.train()
    trainer.evaluate()
    watch.assert_mean((EPOCHS + 1) * ROWS // BATCH)
    assert_as_plain(model, opt)


def test_counting_rows_where_the_loss_is_a_mean_over_tokens_is_told(tmp_path):
    trainer, model, _ = make(tmp_path, max_steps=1)
    trainer.optimizer.param_groups[0]["num_data"] = ROWS
    with pytest.warns(UserWarning, match=rf"num_data must count .*, got {ROWS} for about {ROWS} rows with"):
        trainer.train()
    assert not model._forward_pre_hooks


def test_saved(tmp_path):
    check_saved(make, tmp_path)


def test_resume(tmp_path):
    check_resume(make, tmp_path, assert_as_plain)


@pytest.mark.parametrize("way", WAYS)
def test_as_the_plain_loop(way, tmp_path):
    """trl computes the loss in chunks, which bfloat16 rounds otherwise than the model's own loss."""
    tolerance = 1e-1 if way == "AMP" else 1e-5
    model = check_as_the_plain_loop(make, tmp_path, way, assert_as_plain, tolerance=tolerance)
    assert (weights(model) - weights(plain()[0])).abs().max() > 1e-5


# PEFT


@pytest.fixture(scope="module")
def trained():
    return plain(adapted, epochs=8, lr=0.05)


def test_the_adapters_alone_are_random_and_learn(trained):
    model, opt = trained
    q = opt.posterior()
    assert q.mean.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in q.mean)
    assert torch.equal(model.get_base_model().lm_head.weight, language_model().lm_head.weight)
    with torch.no_grad():
        before, after = (m(input_ids=tokens(), labels=tokens()).loss for m in (adapted().eval(), model))
    assert after < before - 0.05


def test_a_saved_adapter_loads_in_plain_peft(trained, tmp_path):
    """While the weights hold a sample of training, what is saved is the mean; an applied sample is saved itself."""
    model, opt = trained
    expected = model(input_ids=tokens()).logits
    model.train()
    assert not torch.allclose(model(input_ids=tokens()).logits, expected)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(language_model(), tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=tokens()).logits, expected)
    model.eval()
    with opt.posterior(model).applied(model, sample=3):
        model.save_pretrained(tmp_path / "sample")
        expected = model(input_ids=tokens()).logits.detach()
    loaded = peft.PeftModel.from_pretrained(language_model(), tmp_path / "sample").eval()
    torch.testing.assert_close(loaded(input_ids=tokens()).logits, expected)
