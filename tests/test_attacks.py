import copy
import math

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.attacks import fgsm, fgsm_direction, move, of_model, of_posterior, pgd
from spikeslab.posterior import Chains


@pytest.fixture
def linear() -> nn.Module:
    """Logits (0, w x): the gradient of log P is known."""
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [2.0, -1.0, 0.0]]))
    return model


@pytest.fixture
def posterior() -> ss.Posterior:
    """Five networks with batch normalisation and dropout, not equally weighted."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(9, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 4)
    )
    sampler = ss.SGLD(model.parameters(), lr=1.0, num_data=10, temperature=0.0)
    posterior = ss.Posterior(model, weighting="epsilon", sampler=sampler)
    for step in range(5):
        sampler.steps, sampler.param_groups[0]["lr"] = step + 1, 1.0 + step
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        model(torch.randn(20, 9))
        posterior.collect()
    return posterior


def test_the_label_free_step_lowers_the_predicted_class(linear: nn.Module) -> None:
    x = torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.9, 0.5]])  # predicted 1 and 0
    moved = fgsm(of_model(linear), x, 0.05)
    assert torch.allclose(moved - x, torch.tensor([[-0.05, 0.05, 0.0], [0.05, -0.05, 0.0]]))


def test_with_labels_the_true_class_is_lowered(linear: nn.Module) -> None:
    x = torch.tensor([[0.9, 0.2, 0.5]])
    moved = fgsm(of_model(linear), x, 0.05, torch.tensor([0]))
    assert torch.allclose(moved - x, torch.tensor([[0.05, -0.05, 0.0]]))


def test_pixels_stay_in_the_unit_interval(linear: nn.Module) -> None:
    x = torch.tensor([[0.02, 0.99, 0.5], [0.99, 0.01, 0.5]])
    for attack in (fgsm, pgd):
        moved = attack(of_model(linear), x, 0.3)
        assert float(moved.min()) >= 0.0
        assert float(moved.max()) <= 1.0
        assert float((moved - x).abs().max()) <= 0.3 + 1e-6


def test_no_distance_is_no_attack(posterior: ss.Posterior) -> None:
    x = torch.rand(6, 1, 3, 3)
    for attack in (fgsm, pgd):
        assert torch.equal(attack(of_posterior(posterior), x, 0.0), x)


def test_the_posterior_is_the_average_that_it_predicts(posterior: ss.Posterior) -> None:
    x = torch.rand(6, 1, 3, 3)
    assert torch.allclose(of_posterior(posterior)(x).exp(), posterior.predict(x), atol=1e-6)


def test_the_averaged_attack_follows_the_gradient_of_the_average(posterior: ss.Posterior) -> None:
    x = torch.rand(5, 1, 3, 3, dtype=torch.float64)
    posterior.model.double()
    target = of_posterior(posterior)
    labels = target(x).argmax(1)
    moved = fgsm(target, x, 0.01)
    for row, pixel in [(0, (0, 0)), (2, (1, 2)), (4, (2, 1))]:
        up, down = x.clone(), x.clone()
        up[row, 0, pixel[0], pixel[1]] += 1e-5
        down[row, 0, pixel[0], pixel[1]] -= 1e-5
        slope = (target(up) - target(down))[row, labels[row]].detach()
        change = (moved - x)[row, 0, pixel[0], pixel[1]]
        assert float(change.sign()) == -float(slope.sign())


def test_one_direction_serves_every_distance_to_the_last_bit(posterior: ss.Posterior) -> None:
    x = torch.rand(6, 1, 3, 3)
    target = of_posterior(posterior)
    direction = fgsm_direction(target, x)
    for zeta in (0.0, 0.05, 0.3, 0.5):
        assert torch.equal(move(x, direction, zeta), fgsm(target, x, zeta))


def test_some_samples_are_averaged_with_their_own_weights(posterior: ss.Posterior) -> None:
    x = torch.rand(6, 1, 3, 3)
    one, three = (of_model(posterior.sample(index))(x).exp() for index in (1, 3))
    # the weights are 1 to 5
    assert torch.allclose(of_posterior(posterior, [1, 3])(x).exp(), (2 * one + 4 * three) / 6, atol=1e-6)


@pytest.mark.parametrize("gap", [0.0, 5.0, 20.0, 60.0])
def test_a_confident_network_does_not_hide_its_gradient(gap: float) -> None:
    # log P(0) falls along the first pixel, which only the logit of class 0 sees, however sure the network is.
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
        model.bias.copy_(torch.tensor([gap, 0.0, 0.0]))
    x = torch.tensor([[0.9, 0.2]])
    assert torch.equal(fgsm_direction(of_model(model), x), torch.tensor([[-1.0, 1.0]]))
    assert torch.allclose(of_model(model)(x), model(x).log_softmax(1), atol=1e-6)


def test_projected_gradient_descent_is_at_least_as_strong(posterior: ss.Posterior) -> None:
    x = torch.rand(64, 1, 3, 3)
    target = of_posterior(posterior)
    labels = target(x).argmax(1)
    with torch.no_grad():
        one, many = (target(attack(target, x, 0.2, labels)).gather(1, labels[:, None]).mean() for attack in (fgsm, pgd))
    assert many <= one + 1e-6


def test_a_random_start_is_within_reach_and_repeatable(posterior: ss.Posterior) -> None:
    x = torch.rand(8, 1, 3, 3)
    target = of_model(posterior.sample(0))
    starts = [
        pgd(target, x, 0.1, steps=1, step_size=1e-9, generator=torch.Generator().manual_seed(1)) for _ in range(2)
    ]
    assert torch.equal(*starts)
    assert 0.05 < float((starts[0] - x).abs().max()) <= 0.1 + 1e-6


def test_attacks_leave_no_trace(posterior: ss.Posterior) -> None:
    model = posterior.model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fgsm(of_model(model), torch.rand(6, 1, 3, 3), 0.1)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bad_arguments_are_refused(linear: nn.Module) -> None:
    for zeta, settings, message in (
        (-0.1, {}, r"^zeta must be a number >= 0, but got -0\.1\.$"),
        (0.1, {"steps": 0}, r"^steps must be an integer >= 1, but got 0\.$"),
        (0.1, {"steps": 0, "step_size": 0.1}, r"^steps must be an integer >= 1, but got 0\.$"),
    ):
        with pytest.raises(ValueError, match=message):
            (pgd if settings else fgsm)(of_model(linear), torch.rand(1, 3), zeta, **settings)


@pytest.mark.parametrize("attack", [fgsm, pgd])
def test_other_inputs_than_those_in_the_unit_interval_are_refused(linear: nn.Module, attack) -> None:
    target = of_model(linear)
    for x, error, message in (
        (torch.ones(1, 3).byte(), TypeError, r"^x must be floating-point .* but got torch\.uint8: divide by"),
        (
            [[-1.0, 0.5, 2.0]],
            ValueError,
            r"^x must be in \[0, 1\], .* -1 to 2: normalise in the transform of the target",
        ),
        ([[math.nan, 0.5, 0.5]], ValueError, r"^x must be in \[0, 1\], but got numbers from nan to nan"),
    ):
        with pytest.raises(error, match=message):
            attack(target, torch.as_tensor(x), 0.0)


@pytest.mark.parametrize("attack", [fgsm, pgd])
def test_other_labels_than_one_class_for_each_row_are_refused(linear: nn.Module, attack) -> None:
    target, x = of_model(linear), torch.rand(2, 3)
    for labels, message in (
        ([1], r"integers, one for each of 2 rows, but got torch.int64 of the shape \(1,\)"),
        ([[1], [0]], r"integers, one for each of 2 rows, but got torch.int64 of the shape \(2, 1\)"),
        ([1.0, 0.0], r"integers, one for each of 2 rows, but got torch.float32 of the shape \(2,\)"),
        ([0, 2], "classes from 0 to 1, but got 2"),
        ([0, -1], "classes from 0 to 1, but got -1"),
    ):
        with pytest.raises(ValueError, match=rf"^labels must be {message}\.$"):
            attack(target, x, 0.1, torch.tensor(labels))
    assert torch.equal(attack(target, x, 0.1, torch.tensor([0, 1]).int()), attack(target, x, 0.1, torch.tensor([0, 1])))


def test_a_posterior_without_samples_is_refused(posterior: ss.Posterior) -> None:
    empty = ss.Posterior(nn.Linear(1, 2))
    for samples, indices, error, message in (
        (empty, None, ValueError, "posterior must hold at least one sample, but got none"),
        (Chains([empty, empty]), None, ValueError, "posterior must hold at least one sample, but got none"),
        (posterior, [], ValueError, "indices must be those of at least one sample, but got none"),
        (posterior, [5], IndexError, "index must be below the number of samples, 5, but got 5"),
    ):
        with pytest.raises(error, match=rf"^{message}\.$"):
            of_posterior(samples, indices)


def test_several_chains_are_the_average_that_they_predict(posterior: ss.Posterior) -> None:
    # The second chain has the first two samples once more, with their weights 1 and 2.
    second = copy.copy(posterior)
    second.records = second.records[:2]
    chains, x = Chains([posterior, second]), torch.rand(6, 1, 3, 3)
    assert torch.allclose(of_posterior(chains)(x).exp(), chains.predict(x), atol=1e-6)
    chosen = of_posterior(chains, [2, 6])(x).exp()
    three, two = (of_model(posterior.sample(index))(x).exp() for index in (2, 1))
    assert torch.allclose(chosen, (3 * three + 2 * two) / 5, atol=1e-6)


def test_a_network_that_is_fed_normalised_inputs_is_attacked_in_pixels(posterior: ss.Posterior) -> None:
    def normalize(x: torch.Tensor) -> torch.Tensor:
        return (x - 0.3) / -0.2  # the sign would turn the attack round if it were left out of the gradient

    class Inside(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(normalize(x))

    x, inside = torch.rand(6, 1, 3, 3), Inside(posterior.sample(2))
    for attack in (fgsm, pgd):
        expected = attack(of_model(inside), x, 0.1)
        assert torch.equal(attack(of_model(inside.model, transform=normalize), x, 0.1), expected)
        assert torch.equal(attack(of_posterior(posterior, [2], transform=normalize), x, 0.1), expected)
