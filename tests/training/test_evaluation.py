"""Evaluations of a classifier."""

import json
from pathlib import Path

import torch
from runs import ROWS, data, network

import spikeslab as ss
from spikeslab.training import ClassifierEvaluation, Evaluate, TensorBatches, Training


def test_a_classifier_is_evaluated_in_evaluation_mode(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = network()
    x, y = data()
    evaluation = ClassifierEvaluation(model, x, y, batch_size=10)
    sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=ROWS, temperature=0.0)
    run = Training(model, sampler, TensorBatches(x, y, batch_size=8), callbacks=[Evaluate(evaluation)])
    run.run(epochs=30, folder=tmp_path)
    assert model.training
    found = json.loads((tmp_path / "evaluation.json").read_text())
    model.eval()
    assert found["accuracy"] == float((model(x).argmax(1) == y).double().mean()) > 0.8
    assert sum(found["reliability"]["count"]) == found["rows"] == ROWS
