"""The prior on the components of an adapter finds the rank that was planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.priors import GroupSpikeSlab

peft = pytest.importorskip("peft")

from spikeslab.integrations.lora import adapter_rows, choose_ranks  # noqa: E402

SIZE, ROWS, NOISE = 16, 1024, 0.5


def adapted(rank: int = 8, **options: Any) -> Any:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(SIZE, SIZE))
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=["0"], **options)
    return peft.get_peft_model(network, config)


def fit(model: Any, planted: int, seed: int, steps: int = 2500, lr: float = 0.015) -> GroupSpikeSlab:
    """Train the adapter on data that differ from the network by a matrix of the planted rank."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x = draw(ROWS, SIZE)
    matrix = draw(SIZE, planted) @ draw(planted, SIZE) / SIZE**0.5
    with torch.no_grad():
        y = model.base_model.model[0].base_layer(x) + x @ matrix.T + NOISE * draw(ROWS, SIZE)
    prior = GroupSpikeSlab(adapter_rows(model), steps=steps, v0=0.01, v1=0.05, delta=1e-3)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    cooling = ss.schedules.geometric(1.0, 0.997)
    options = {"temperature": cooling, "prior": prior, "weight_decay": 0.1, "seed": seed}
    sampler = ss.SGHMC(trained, lr=lr, num_data=ROWS, **options)
    for _ in range(steps):
        rows = torch.randint(ROWS, (64,), generator=generator)
        sampler.zero_grad()
        ((model(x[rows]) - y[rows]).square().sum(1).mean() / (2.0 * NOISE**2)).backward()
        sampler.step()
    return prior


@pytest.mark.parametrize("planted", [0, 1, 3])
def test_the_planted_rank_is_recovered_and_saved(planted: int, tmp_path: Path) -> None:
    model = adapted()
    prior = fit(model, planted, seed=1)
    x = torch.randn(5, SIZE)
    before = model(x).detach()
    assert choose_ranks(model, prior) == {"0": planted}
    layer = model.base_model.model[0]
    assert layer.lora_A["default"].weight.shape == (max(planted, 1), SIZE)
    assert float((model(x) - before).abs().max()) < 0.1, "what went was hardly there"
    model.save_pretrained(tmp_path / "adapter")
    torch.manual_seed(0)
    loaded = peft.PeftModel.from_pretrained(nn.Sequential(nn.Linear(SIZE, SIZE)), tmp_path / "adapter")
    torch.testing.assert_close(loaded(x), model(x))
    model(x).sum().backward()
    assert layer.lora_B["default"].weight.grad.shape == (SIZE, max(planted, 1))


@pytest.mark.slow
@pytest.mark.parametrize("planted", [0, 1, 3, 5, 7])
@pytest.mark.parametrize("seed", [2, 3])
def test_more_ranks_and_seeds(planted: int, seed: int) -> None:
    model = adapted()
    assert choose_ranks(model, fit(model, planted, seed, steps=5000, lr=0.01)) == {"0": planted}


@pytest.mark.parametrize("root", [False, True])
def test_the_scale_of_the_adapter_stays(root: bool, tmp_path: Path) -> None:
    model = adapted(use_rslora=root)
    layer = model.base_model.model[0]
    with torch.no_grad():
        layer.lora_B["default"].weight.normal_()
        layer.lora_A["default"].weight[3:] = 0.0
    prior = GroupSpikeSlab(adapter_rows(model), v0=0.01, v1=1.0, delta=0.5, adapt=ss.EM())
    x = torch.randn(5, SIZE)
    before = model(x).detach()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sampler = ss.SGHMC(trained, lr=0.0, num_data=ROWS, prior=prior)
    model(x).sum().backward()
    sampler.step()  # which moves rho alone
    assert choose_ranks(model, prior) == {"0": 3}
    torch.testing.assert_close(model(x), before)
    model.save_pretrained(tmp_path / "adapter")
    torch.manual_seed(0)
    loaded = peft.PeftModel.from_pretrained(nn.Sequential(nn.Linear(SIZE, SIZE)), tmp_path / "adapter")
    torch.testing.assert_close(loaded(x), before)


def test_bad_input_is_one_sentence() -> None:
    model = adapted()
    other = GroupSpikeSlab(adapter_rows(adapted()), v0=0.01, v1=1.0)
    with pytest.raises(ValueError) as caught:
        choose_ranks(model, other)
    assert str(caught.value) == (
        "prior must be on adapter_rows(model), but it lacks 'base_model.model.0.lora_A.default.weight'."
    )
    with pytest.raises(
        ValueError, match=r"^model must have LoRA adapters of linear layers, called 'x', but it has none"
    ):
        adapter_rows(model, "x")
