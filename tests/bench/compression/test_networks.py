"""Data and dense networks of the study."""

from __future__ import annotations

import pytest
import torch

from spikeslab.bench.compression import networks
from spikeslab.bench.compression.networks import (
    dense_network,
    find_missing_data,
    load_problem,
    load_table_data,
    load_text_data,
    token_loss,
)
from spikeslab.bench.compression.text import CONTEXT, CharTransformer
from spikeslab.paper.data_files import VARIABLE, DataError


def test_a_character_sees_nothing_behind_it():
    torch.manual_seed(0)
    model = CharTransformer(5, layers=2, width=16, heads=2, context=8).eval()
    x = torch.randint(5, (1, 8))
    changed = x.clone()
    changed[0, 5] = (x[0, 5] + 1) % 5
    with torch.no_grad():
        before, after = model(x), model(changed)
    assert before.shape == (1, 5, 8)
    torch.testing.assert_close(before[..., :5], after[..., :5])
    assert not torch.allclose(before[..., 5], after[..., 5])


def test_a_transformer_learns_which_character_follows():
    torch.manual_seed(0)
    model = CharTransformer(5, layers=1, width=16, heads=2, context=8)
    x = (torch.arange(9) + torch.arange(20)[:, None]) % 5
    batch = x[:, :-1], x[:, 1:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        token_loss(model, batch).backward()
        optimizer.step()
    assert token_loss(model, batch).item() < 0.1


def test_the_text_is_split_in_order(tmp_path):
    (tmp_path / "text").mkdir()
    text = "".join(chr(97 + index % 26) for index in range(40 * CONTEXT))
    (tmp_path / "text" / "tinyshakespeare.txt").write_text(text)
    data = load_text_data(tmp_path, 0)
    x, y = data.train.tensors
    assert torch.equal(x[:, 1:], y[:, :-1])  # the next character
    assert torch.equal(x[0], torch.arange(CONTEXT) % 26)
    assert len(x) == 33  # 0.85 * 40 rows, without the character that only follows
    (x_test, _), *rest = data.test
    assert not rest
    assert int(x_test[0, 0]) == 36 * CONTEXT % 26  # the last tenth begins there


def test_the_table_is_split_by_the_seed_and_scaled_by_the_training_rows(tmp_path):
    names = "instant,dteday,temp,hum,casual,registered,cnt"
    rows = [f"{i},2011-01-01,{i % 7},{i % 5 + 0.5},{i},{i},{3 * (i % 7)}" for i in range(100)]
    (tmp_path / "bikesharing_hour.csv").write_text("\n".join([names, *rows]) + "\n")
    data = load_table_data(tmp_path, 0)
    x, y = data.train.tensors
    assert x.shape == (72, 2)  # temp and hum of 90 % of 80 %
    assert [len(part[0][1]) for part in (data.held_out, data.test)] == [8, 20]
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(2), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(y.std(correction=0), torch.tensor(1.0))
    torch.testing.assert_close(x[:, 0], y)  # the target is three times the first column
    assert not torch.equal(data.test[0][1], load_table_data(tmp_path, 1).test[0][1])
    assert torch.equal(data.test[0][1], load_table_data(tmp_path, 0).test[0][1])


def test_a_dense_network_is_trained_once(tmp_path, monkeypatch):
    first = dense_network("lenet", None, 0, False, tmp_path)
    assert [path.name for path in (tmp_path / "dense").iterdir()] == ["lenet-seed0.safetensors"]
    monkeypatch.setattr(networks, "train_dense", None)
    second = dense_network("lenet", None, 0, False, tmp_path)
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)
    with torch.no_grad():
        (x, y), *_ = load_problem("lenet", None, 0, False)[1].test
        assert float((first(x).argmax(1) == y).double().mean()) > 0.6


def test_a_file_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DataError, match=r"data_dir \(or SPIKESLAB_DATA\) must name a folder with tinyshakespeare.txt"):
        load_text_data(None, 0)
    assert find_missing_data("resnet20", tmp_path, 0) == (
        f"{tmp_path} must be a folder with resnet20_dense.safetensors, but there is none."
    )
    assert find_missing_data("lenet", tmp_path, 0) is None
