"""Heads and feed-forward units of Hugging Face's classes go, and the classes stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spikeslab.compression import compact

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}


def bert(attention: str) -> nn.Module:
    config = transformers.BertConfig(vocab_size=50, attn_implementation=attention, **SIZES)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    sizes = {"vocab_size": 50, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=4, **SIZES))


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, num_key_value_heads=3, **SIZES))


def tokens(rows: int) -> Tensor:
    return torch.randint(50, (rows, 9))


def masked(rows: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(rows), "attention_mask": torch.ones(rows, 9, dtype=torch.long)}


def images(rows: int) -> Tensor:
    return torch.randn(rows, 3, 16, 16).double()


MODELS = {
    "BERT": (lambda: bert("sdpa"), masked, "attention.output.dense", "intermediate.dense"),
    "BERT, eager": (lambda: bert("eager"), masked, "attention.output.dense", "intermediate.dense"),
    "GPT-2": (gpt2, tokens, "attn.c_proj", "mlp.c_fc"),
    "ViT": (vit, images, "attention.o_proj", "mlp.fc1"),
    "Llama": (llama, tokens, "self_attn.o_proj", "mlp.up_proj"),
}


@torch.no_grad()
def kill(model: nn.Module, attention: str, feed: str) -> None:
    """Kill the second of three heads, and ten of forty units or of GPT-2's 96."""
    for name, module in model.named_modules():
        if name.endswith(attention):
            (module.weight[8:16] if hasattr(module, "nf") else module.weight[:, 8:16]).zero_()
        if name.endswith(feed):
            (module.weight[:, 5:15] if hasattr(module, "nf") else module.weight[5:15]).zero_()
            if module.bias is not None:
                module.bias[5:15] = 0.0


@pytest.mark.parametrize("name", MODELS)
def test_heads_and_units_go_and_the_class_stays(name) -> None:
    build, example, attention, feed = MODELS[name]
    torch.manual_seed(0)
    model = build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    kill(model, attention, feed)
    result = compact(model, example(2))
    assert type(result.model) is type(model)
    for size_name, size in result.report.before.items():
        after = result.report.after[size_name]
        if size_name.endswith(attention):
            assert (after.inputs, after.outputs) == (16, 24)
        if size_name.endswith(feed):
            assert (after.inputs, after.outputs) == (24, size.outputs - 10)
    inputs: Any = example(3)
    with torch.no_grad():
        expected, got = (
            (network(**inputs) if isinstance(inputs, dict) else network(inputs)).logits
            for network in (model, result.model)
        )
    torch.testing.assert_close(got, expected, rtol=0.0, atol=1e-12 * float(expected.abs().max()))


def test_a_model_of_tokens_in_float32_and_other_lengths() -> None:
    model = bert("sdpa").eval()
    kill(model, "attention.output.dense", "intermediate.dense")
    smaller = compact(model, masked(2)).model
    inputs = {
        "input_ids": torch.randint(50, (3, 5)),
        "attention_mask": torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1] * 5]),
    }
    with torch.no_grad():
        torch.testing.assert_close(smaller(**inputs).logits, model(**inputs).logits)
