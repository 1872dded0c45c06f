"""The mixture on groups against integrals, autograd and the mixture on single weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from spikeslab.functional import groups, mixture
from spikeslab.functional.mixture import GAUSSIAN, LAPLACE, Affine

SETTINGS = {"v0": 0.3, "v1": 2.0, "sigma": 0.7}
SPIKE, SLAB = 1e-300, 1 - 1e-16  # a delta at which the mixture is one component


def density(norm: np.ndarray | torch.Tensor, delta: float, size: int, **settings: float) -> torch.Tensor:
    norm = torch.as_tensor(norm, dtype=torch.float64)
    return mixture.log_marginal(norm, **SETTINGS | settings, delta=delta, size=size).exp()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("delta", [SPIKE, SLAB, 0.4])
def test_the_density_integrates_to_one_in_cartesian_coordinates(size: int, delta: float) -> None:
    points = {1: 4000, 2: 1000, 3: 160}[size]
    step = 8.0 / points
    axis = step * (torch.arange(points, dtype=torch.float64) + 0.5)  # one orthant, by the midpoint rule
    squares = sum((axis**2).view(*(-1 if i == j else 1 for j in range(size))) for i in range(size))
    total = float(density(squares.sqrt(), delta, size).sum()) * (2 * step) ** size
    assert total == pytest.approx(1.0, abs=2e-3)


def radial(size: int, delta: float, power: int, upper: float) -> float:
    """The moment of the norm, from the area of the sphere."""
    log_area = math.log(2) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size)

    def integrand(norm: float) -> float:
        log_density = mixture.log_marginal(
            torch.tensor(norm, dtype=torch.float64), **SETTINGS, delta=delta, size=size
        ).item()
        return math.exp(log_density + log_area + (size - 1 + power) * math.log(norm))

    return integrate.quad(integrand, 1e-12, upper, limit=200)[0]


@pytest.mark.parametrize("size", [1, 2, 9, 75, 288])
def test_a_weight_has_the_same_variance_in_a_group_of_any_size(size: int) -> None:
    for delta, variance in ((SPIKE, 2 * 0.3**2 * 0.7**2), (SLAB, 2.0 * 0.7**2)):
        upper = math.sqrt(size * variance) * (1 + 15 / math.sqrt(size)) + 5
        assert radial(size, delta, 0, upper) == pytest.approx(1.0, rel=1e-6)
        assert radial(size, delta, 2, upper) / size == pytest.approx(variance, rel=1e-5)


def test_groups_of_one_are_single_weights() -> None:
    beta = torch.randn(50, 1, dtype=torch.float64)
    (norm,) = groups.norms([beta])
    assert torch.equal(norm, beta[:, 0].abs())
    rhos = [mixture.rho([norm], **SETTINGS, deltas=[0.2], sizes=sizes)[0] for sizes in ([1], None)]
    assert torch.equal(*rhos)


def test_the_normaliser_of_one_weight_is_that_of_all_sizes() -> None:
    sphere = math.log(2.0) + 0.5 * math.log(math.pi) - math.lgamma(0.5)
    assert LAPLACE.log_normaliser(0.3) == pytest.approx(sphere + math.log(0.3), rel=1e-14)


@pytest.mark.parametrize("spike", [LAPLACE, GAUSSIAN])
@pytest.mark.parametrize("shape", [(6, 4), (5, 3, 2, 2), (4,), (7, 1)])
def test_fishers_identity(shape: tuple[int, ...], spike: mixture.Component) -> None:
    """The gradient of the log mixture density is minus the penalty's at the responsibilities."""
    beta = (0.4 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    size = groups.group_size(beta)
    (norm,) = groups.norms([beta])
    mixture.log_marginal(norm, **SETTINGS, delta=0.3, size=size, spike=spike).sum().backward()
    rhos = mixture.rho([norm.detach()], **SETTINGS, deltas=[0.3], sizes=[size], spike=spike)
    l1, l2 = mixture.elastic_net(Affine(1 / 0.3, -1 / 0.3), Affine(0.0, 1 / 2.0), spike, GAUSSIAN)
    out = torch.zeros_like(beta)
    groups.add_gradient_([out], [beta.detach()], [norm.detach()], rhos, l1.scale(1 / 0.7), l2.scale(1 / 0.49))
    torch.testing.assert_close(out, -beta.grad, rtol=1e-9, atol=1e-9)


def test_the_gradient_is_that_of_the_penalty_by_finite_differences() -> None:
    beta, s = torch.randn(3, 2, 2, dtype=torch.float64), torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    l1, l2 = Affine(2.0, -0.5), Affine(0.3, 1.1)

    def penalty(values: torch.Tensor) -> float:
        b, j = groups.penalty_sums(groups.norms([values]), [s], [4], l1, l2)
        return b + 0.5 * j

    out = torch.zeros_like(beta)
    groups.add_gradient_([out], [beta], groups.norms([beta]), [s], l1, l2)
    for index in np.ndindex(*beta.shape):
        shift = torch.zeros_like(beta)
        shift[index] = 1e-6
        assert out[index].item() == pytest.approx((penalty(beta + shift) - penalty(beta - shift)) / 2e-6, rel=1e-6)


def test_a_group_at_zero_is_not_pushed_and_a_tiny_one_has_a_finite_gradient() -> None:
    beta = torch.zeros(3, 4)
    beta[1] = 1e-25
    beta[2] = 1e-40
    out = torch.zeros(3, 4)
    groups.add_gradient_([out], [beta], groups.norms([beta]), None, Affine(1.0, 0.0), Affine(1.0, 0.0))
    assert out[0].tolist() == [0.0] * 4
    assert out.isfinite().all()


@pytest.mark.parametrize("size", [1, 27, 4608])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rho_is_0_for_tiny_groups_1_for_large_ones_and_finite_for_huge_ones(size: int, dtype: torch.dtype) -> None:
    root_mean_squares = torch.tensor([0.0, 1e-4, 0.1, 1.0, 1e6, 1e15], dtype=dtype)
    norm = root_mean_squares * math.sqrt(size)
    (rho,) = mixture.rho([norm], v0=1e-3, v1=1.0, sigma=1.0, deltas=[0.5], sizes=[size])
    assert rho[:2].max() < 1e-2
    assert rho[2:4].min() > 0.999
    assert rho.isfinite().all()


def test_one_v0_separates_groups_at_the_same_root_mean_square_whatever_their_size() -> None:
    """The limit that the docstring gives, r/s0 - r^2/(2 s1^2) + log(s0/s1) = 1/2."""
    s0, s1 = math.sqrt(2) * 1e-3, 0.2

    def threshold(size: int) -> float:
        (odds,) = mixture.log_odds(v0=1e-3, v1=0.04, sigma=1.0, deltas=[0.5], sizes=[size])
        root = (-odds.linear + math.sqrt(odds.linear**2 - 4 * odds.quadratic * odds.offset)) / (2 * odds.quadratic)
        return root / math.sqrt(size)

    a, b, c = -0.5 / s1**2, 1 / s0, math.log(s0 / s1) - 0.5
    limit = (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)
    assert threshold(100_000) == pytest.approx(limit, rel=1e-3)
    assert threshold(288) == pytest.approx(threshold(27), rel=0.05)


def test_norms_of_a_channels_last_weight() -> None:
    weight = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    torch.testing.assert_close(groups.norms([weight])[0], weight.reshape(4, -1).norm(dim=1))
