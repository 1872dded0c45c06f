"""MC dropout and the last-layer Laplace approximation, against what they must be in simple cases."""

from __future__ import annotations

import math

import pytest
import torch
from synthetic_images import bright_bars
from torch.nn import functional as F

from spikeslab.paper.images.augmentation import PLAIN
from spikeslab.paper.images.networks import CNN, BatchNormCNN
from spikeslab.paper.images.references import PRECISIONS, LastLayerLaplace, Network, predict_mc_dropout
from spikeslab.paper.images.runs import predict

DATA = bright_bars()


def make_model(batch_norm: bool = False, dropout: float = 0.5) -> Network:
    torch.manual_seed(0)
    return BatchNormCNN((0.0, 0.0), dropout) if batch_norm else CNN(dropout)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_dropout_masks_are_averaged_and_statistics_stay(batch_norm: bool) -> None:
    model = make_model(batch_norm)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    one, again = (predict_mc_dropout(model, PLAIN, DATA.x_test, seed=3) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, predict_mc_dropout(model, PLAIN, DATA.x_test, seed=4))
    plain = predict(model, PLAIN, DATA.x_test)
    assert not torch.allclose(one, plain, atol=1e-6)
    torch.testing.assert_close(one, plain, rtol=0, atol=0.05)
    assert model.training
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    without = make_model(batch_norm, dropout=0.0)
    torch.testing.assert_close(predict_mc_dropout(without, PLAIN, DATA.x_test), predict(without, PLAIN, DATA.x_test))


def test_the_precision_is_the_hessian_of_the_last_layer() -> None:
    model = make_model(dropout=0.0)
    laplace = LastLayerLaplace(model, PLAIN, DATA.x_train, DATA.y_train)
    (features, _), *_ = laplace._features(DATA.x_train)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(features.double() @ flat.view(10, -1).T, DATA.y_train, reduction="sum")

    weights = torch.cat([model.fc2.weight, model.fc2.bias[:, None]], dim=1).detach().double().flatten()
    direction = torch.randn(len(weights), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    # For a softmax the Gauss-Newton matrix of the last layer is the Hessian.
    product = torch.func.jvp(torch.func.grad(loss), (weights,), (direction,))[1]
    ours = laplace.vectors @ (laplace.values * (laplace.vectors.T @ direction))
    torch.testing.assert_close(ours, product, rtol=1e-3, atol=1e-3)
    assert laplace.log_likelihood == pytest.approx(-float(loss(weights)), rel=1e-4)
    precision, size = 3.0, len(weights)
    determinant = float(torch.logdet(laplace.vectors @ torch.diag(laplace.values + precision) @ laplace.vectors.T))
    expected = laplace.log_likelihood - 0.5 * precision * float(weights.square().sum())
    expected += 0.5 * (size * math.log(precision) - determinant)
    assert laplace.evidence(precision) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_certain_prior_changes_nothing_and_a_vague_one_lowers_confidence(batch_norm: bool) -> None:
    model = make_model(batch_norm, dropout=0.0)
    laplace = LastLayerLaplace(model, PLAIN, DATA.x_train, DATA.y_train)
    plain = predict(model, PLAIN, DATA.x_test)
    torch.testing.assert_close(laplace.predict(DATA.x_test, 1e9), plain, rtol=0, atol=1e-4)
    last = laplace.last
    with torch.no_grad():
        last.weight *= 30.0  # a network that is too sure of answers it has not learned
    unsure, sure = (LastLayerLaplace(model, PLAIN, DATA.x_train, DATA.y_train) for _ in range(2))
    confidence = [
        float(each.max(1).values.mean())
        for each in (unsure.predict(DATA.x_test, 1e-2), predict(model, PLAIN, DATA.x_test))
    ]
    assert confidence[0] < confidence[1]
    chosen = sure.choose_precision(DATA.x_test, DATA.y_test)
    losses = {each: float(F.nll_loss(sure.predict(DATA.x_test, each).log(), DATA.y_test)) for each in PRECISIONS}
    assert chosen == min(losses, key=losses.__getitem__)
    evidences = {each: sure.evidence(each) for each in PRECISIONS}
    assert sure.choose_precision() == max(evidences, key=evidences.__getitem__)
