"""The callback in the Trainer of transformers, and networks of transformers in `compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import spikeslab as ss
from spikeslab.errors import SpikeSlabWarning
from spikeslab.training import PosteriorEvaluation

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from spikeslab.integrations.huggingface import SpikeSlabTrainerCallback, create_optimizer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning", "ignore:.*stays dense.*")

ROWS, LENGTH, WORDS, BATCH = 64, 6, 12, 8


def data() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(WORDS, (ROWS, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (ROWS, 1), generator=generator)).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 2}


def rows() -> list[dict[str, Tensor]]:
    whole = data()
    return [{name: tensor[index] for name, tensor in whole.items()} for index in range(ROWS)]


def batches() -> list[Any]:
    whole = data()
    parts = range(0, ROWS, 16)
    return [transformers.BatchEncoding({name: tensor[i : i + 16] for name, tensor in whole.items()}) for i in parts]


SIZES = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 8, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def bert(**options: Any) -> nn.Module:
    torch.manual_seed(3)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, num_labels=2, **options))


def gpt() -> nn.Module:
    torch.manual_seed(3)
    config = {"vocab_size": WORDS, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config |= {"bos_token_id": 0, "eos_token_id": 0, "loss_type": "ForCausalLMLoss"}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


def parts(model: nn.Module, steps: int, floor: float = 0.01, disk: Path | None = None) -> tuple[Any, Any, Any]:
    sampler = create_optimizer(model, num_data=ROWS, steps=steps, lr=0.05, temperature=1e-3, weight_decay=1e-3, seed=0)
    schedule = ss.cubic_sparsity(0.5, total=steps // 2)
    pruner = ss.Pruner(sampler.prior.weights, schedule, freeze_at=steps // 2, prior=sampler.prior)
    posterior = ss.Posterior(model, burn_in=steps // 2, thin=2, directory=disk)
    scheduler = CosineAnnealingLR(sampler, steps, eta_min=floor)
    inputs = data()
    labels = inputs.pop("labels")
    own = SpikeSlabTrainerCallback(pruner, posterior, PosteriorEvaluation(posterior, inputs, labels))
    return sampler, scheduler, own


def trainer(model: nn.Module, folder: Path, made: tuple[Any, Any, Any], **options: Any) -> Any:
    settings = {"max_grad_norm": 0.0, "report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    settings |= {"per_device_train_batch_size": BATCH, "num_train_epochs": 2, "logging_strategy": "no"} | options
    arguments = transformers.TrainingArguments(output_dir=str(folder), **settings)
    sampler, scheduler, own = made
    return transformers.Trainer(
        model,
        arguments,
        train_dataset=rows(),
        eval_dataset=rows(),
        optimizers=(sampler, scheduler),
        callbacks=[own],
    )


def test_it_prunes_collects_and_evaluates(tmp_path: Path) -> None:
    model = bert()
    made = parts(model, steps=16)
    run = trainer(model, tmp_path, made)
    run.train()
    sampler, _, own = made
    posterior = own.chain.posterior
    assert (sampler.steps, posterior.steps, len(posterior)) == (16, 16, 4)
    total = sum(weight.numel() for weight in sampler.prior.weights.values())
    for index in range(4):
        sample = posterior.tensors(index)
        assert sum(int((sample[name] == 0).sum()) for name in sampler.prior.weights) == round(0.5 * total)
    found = run.evaluate()
    assert found["eval_samples"] == 4.0
    inputs = data()
    labels = inputs.pop("labels")
    each = [posterior.sample(index).eval()(**inputs).logits.softmax(1) for index in range(4)]
    expected = torch.stack(each).mean(0).detach()
    torch.testing.assert_close(posterior.predict(inputs), expected)
    assert found["eval_posterior_accuracy"] == pytest.approx(float((expected.argmax(1) == labels).double().mean()))
    assert run.state.log_history[-1]["eval_posterior_accuracy"] == found["eval_posterior_accuracy"]


def test_accumulated_gradients_make_one_step_and_bfloat16_leaves_the_weights(tmp_path: Path) -> None:
    model = bert()
    made = parts(model, steps=8)
    seen = set()
    model.classifier.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    trainer(model, tmp_path, made, gradient_accumulation_steps=2, bf16=True).train()
    sampler, _, own = made
    assert (sampler.steps, own.chain.pruner.steps, own.chain.posterior.steps) == (8, 8, 8)
    assert torch.bfloat16 in seen
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_checkpoint_holds_the_samples_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    options = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 16, "save_only_model": False}
    whole = bert()
    expected = parts(whole, steps=24)
    trainer(whole, tmp_path / "whole", expected, **options).train()
    again = bert()
    with torch.no_grad():
        again.classifier.weight.add_(1.0)
    made = parts(again, steps=24, disk=tmp_path / "samples")
    checkpoint = tmp_path / "whole" / "checkpoint-16"
    assert sorted(path.name for path in (checkpoint / "spikeslab").iterdir()) == ["step-000000016"]
    trainer(again, tmp_path / "whole", made, **options).train(resume_from_checkpoint=str(checkpoint))
    own, other = made[2].chain.posterior, expected[2].chain.posterior
    assert [record.step for record in own.records] == [14, 16, 18, 20, 22, 24]
    for index in range(6):
        one, two = own.tensors(index), other.tensors(index)
        assert all(torch.equal(one[name], two[name]) for name in two)


def test_a_checkpoint_of_another_trainer_is_refused(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 8}
    model = bert()
    sampler, scheduler, _ = parts(model, steps=16)
    trainer(model, tmp_path, (sampler, scheduler, transformers.TrainerCallback()), **options).train()
    again = bert()
    checkpoint = tmp_path / "checkpoint-8"
    with pytest.raises(ValueError) as caught:
        trainer(again, tmp_path, parts(again, 16), **options).train(resume_from_checkpoint=str(checkpoint))
    assert str(caught.value) == (
        f"resume must be a checkpoint that was made with this callback, but {checkpoint} has no folder spikeslab: name "
        "the one from which the trainer continues with resume."
    )


def test_the_defaults_of_the_trainer_are_warned_of(tmp_path: Path) -> None:
    model = bert()
    sampler, _, own = parts(model, steps=16)
    linear = transformers.get_scheduler("linear", sampler, num_warmup_steps=0, num_training_steps=15)
    with pytest.warns(SpikeSlabWarning) as caught:
        trainer(model, tmp_path, (sampler, linear, own), max_grad_norm=1.0).train()
    messages = [str(each.message) for each in caught if each.category is SpikeSlabWarning]
    assert messages == [
        "TrainingArguments(max_grad_norm=1.0) clips gradients, and the samples of a chain with clipped gradients are "
        "not from the posterior: switch the clipping off, and lower the lr if the loss diverges without it.",
        "The sample of step 16 was taken while the lr is 0, where a chain stands still: let the schedule end above 0.",
    ]


def test_the_sampler_has_a_prior_on_matrices_and_no_decay_on_scales() -> None:
    model = bert()
    sampler = create_optimizer(model, num_data=100, steps=9, lr=0.1, weight_decay=0.25, momentum=0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, plain = ({names[id(p)] for p in group["params"]} for group in sampler.param_groups)
    assert [group["weight_decay"] for group in sampler.param_groups] == [0.25, 0.0]
    assert all(name.endswith(("bias", "LayerNorm.weight")) for name in plain)
    assert decayed | plain == set(names.values())
    under = set(sampler.prior.weights)
    assert {name for name in decayed - under if "embeddings" not in name} == set()
    assert not any("embeddings" in name for name in under)
    assert [group["momentum"] for group in sampler.param_groups] == [0.5, 0.5]
    assert create_optimizer(model, num_data=100, steps=9, lr=0.1, prior=None).prior is None
    chosen = create_optimizer(model, num_data=100, steps=9, lr=0.1, weights="*.query.weight").prior
    assert [name.rpartition("self.")[2] for name in chosen.weights] == ["query.weight"]


def test_a_compressed_network_is_saved_and_loaded_as_one_of_its_class(tmp_path: Path) -> None:
    model, whole = bert(), batches()
    result = ss.compress(
        model, whole, whole, sparsity=0.5, count="layers", epochs=4, lr=0.02, samples=2, progress=False
    )
    assert type(result.model) is type(model)
    assert result.task.kind == "classification"
    result.model.save_pretrained(tmp_path / "small")
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "small")
    own, other = result.model.state_dict(), loaded.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    names = [layer["name"] for layer in result.report["layers"]]
    zeros = sum(int((other[name] == 0).sum()) for name in names)
    assert zeros == round(0.5 * sum(other[name].numel() for name in names))
    dense = result.evaluation["dense"]
    with torch.no_grad():
        assert dense["nll"] == pytest.approx(float(model.eval()(**data()).loss), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*(loss_type|token_id).*")
def test_a_language_model_loses_weights_of_its_attention_and_keeps_its_tied_head(tmp_path: Path) -> None:
    model = gpt()
    ids = data()["input_ids"]
    whole = [{"input_ids": part, "labels": part} for part in ids.split(16)]
    result = ss.compress(
        model, whole, whole, sparsity=0.5, count="layers", epochs=3, lr=0.02, samples=2, progress=False
    )
    names = [layer["name"] for layer in result.report["layers"]]
    assert [name.partition("h.0.")[2] for name in names] == [
        "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight",
    ]  # fmt: skip
    with torch.no_grad():
        expected = float(model.eval()(input_ids=ids, labels=ids).loss)
    assert result.evaluation["dense"]["nll"] == pytest.approx(expected, rel=1e-5), "the labels are shifted"
    assert result.model.lm_head.weight is result.model.transformer.wte.weight
    result.model.save_pretrained(tmp_path / "small")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "small").eval()
    torch.testing.assert_close(loaded(ids).logits, result.model(ids).logits)
