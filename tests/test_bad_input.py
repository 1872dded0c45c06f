"""Each wrong argument is an error in one sentence: its name, what it got, what is allowed. Nothing is left changed."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError, check_choice, check_count, check_number, quote

SAMPLERS = [ss.SGLD, ss.SGHMC, ss.PSGLD]


def one_sentence(message: str) -> bool:
    return message.endswith(".") and "\n" not in message and ". " not in message


@pytest.mark.parametrize("cls", SAMPLERS)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"lr": -0.1}, ValueError, "lr must be a number >= 0, but got -0.1."),
        ({"lr": math.nan}, ValueError, "lr must be a number >= 0, but got nan."),
        ({"lr": math.inf}, ValueError, "lr must be a number >= 0, but got inf."),
        ({"lr": "0.1"}, TypeError, "lr must be a number >= 0, but got '0.1'."),
        ({"lr": None}, TypeError, "lr must be a number >= 0, but got None."),
        ({"lr": lambda k: -1.0}, ValueError, "lr must be a number >= 0, but got -1.0."),
        ({"temperature": -1.0}, ValueError, "temperature must be a number >= 0, but got -1.0."),
        ({"temperature": lambda k: -1.0}, ValueError, "temperature must be a number >= 0, but got -1.0."),
        ({"weight_decay": -1e-4}, ValueError, "weight_decay must be a number >= 0, but got -0.0001."),
        ({"num_data": None}, TypeError, "num_data must be an integer >= 1, but got None."),
        ({"num_data": 0}, ValueError, "num_data must be an integer >= 1, but got 0."),
        ({"num_data": 100.0}, TypeError, "num_data must be an integer >= 1, but got 100.0."),
        ({"seed": -1}, ValueError, "seed must be an integer >= 0, but got -1."),
        ({"seed": 0.5}, TypeError, "seed must be an integer >= 0, but got 0.5."),
    ],
)
def test_settings_of_all_samplers(cls, settings, error, message: str) -> None:
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(error) as caught:
        cls([weight], **{"lr": 0.1, "num_data": 10} | settings)
    assert str(caught.value) == message
    assert one_sentence(message)
    assert weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("cls", SAMPLERS)
def test_num_data_must_be_a_number(cls) -> None:
    with pytest.raises(TypeError, match=r"^num_data must be an integer >= 1, but got None\.$"):
        cls([nn.Parameter(torch.ones(2))], lr=0.1, num_data=None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: ss.SGHMC(p, 0.1, momentum=1.0, num_data=9), "momentum must be a number in [0, 1), but got 1.0."),
        (lambda p: ss.SGHMC(p, 0.1, momentum=-0.1, num_data=9), "momentum must be a number in [0, 1), but got -0.1."),
        (
            lambda p: ss.SGHMC(p, 0.1, gradient_noise=-1.0, num_data=9),
            "gradient_noise must be a number >= 0, but got -1.0.",
        ),
        (
            lambda p: ss.SGLD(p, 0.1, gradient_noise=-1.0, num_data=9),
            "gradient_noise must be a number >= 0, but got -1.0.",
        ),
        (lambda p: ss.PSGLD(p, 0.1, alpha=1.1, num_data=9), "alpha must be a number in [0, 1], but got 1.1."),
        (lambda p: ss.PSGLD(p, 0.1, eps=0.0, num_data=9), "eps must be a number > 0, but got 0.0."),
    ],
)
def test_settings_of_one_sampler(make, message: str) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        make([nn.Parameter(torch.ones(2))])
    assert str(caught.value) == message


@pytest.mark.parametrize("cls", SAMPLERS)
def test_params_must_be_real_tensors_in_a_list(cls) -> None:
    with pytest.raises(TypeError) as caught:
        cls(nn.Parameter(torch.ones(2)), lr=0.1, num_data=10)
    assert str(caught.value) == "params must be an iterable of parameters or groups, but got a single tensor."
    with pytest.raises(TypeError) as caught:
        cls([nn.Parameter(torch.ones(2, dtype=torch.complex64))], lr=0.1, num_data=10)
    assert str(caught.value) == (
        "params must be real floating-point tensors, but parameter 0 of group 0 (shape (2,)) has dtype torch.complex64."
    )


@pytest.mark.parametrize("cls", SAMPLERS)
def test_sparse_weights_must_be_among_the_parameters(cls) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    prior = ss.SpikeSlab({"a": other.weight, "b": model.weight, "c": other.bias}, v0=0.1, v1=1.0)
    with pytest.raises(ArgumentValueError) as caught:
        cls(model.parameters(), lr=0.1, num_data=10, prior=prior)
    assert str(caught.value) == "prior must be over weights among params, but 'a', 'c' of the prior are not."
    prior = ss.SpikeSlab({"a": other.weight}, v0=0.1, v1=1.0)
    with pytest.raises(ArgumentValueError) as caught:
        cls(model.parameters(), lr=0.1, num_data=10, prior=prior)
    assert str(caught.value) == "prior must be over weights among params, but 'a' of the prior is not."


@pytest.mark.parametrize("cls", [ss.SpikeSlab, ss.priors.SpikeSlabGaussian])
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"v0": -0.1}, ValueError, "v0 must be a number > 0, but got -0.1."),
        ({"v0": 0.0}, ValueError, "v0 must be a number > 0, but got 0.0."),
        ({"v1": -1.0}, ValueError, "v1 must be a number > 0, but got -1.0."),
        ({"v1": math.inf}, ValueError, "v1 must be a number > 0, but got inf."),
        ({"sigma": 0.0}, ValueError, "sigma must be a number > 0, but got 0.0."),
        ({"delta": 0.0}, ValueError, "delta must be a number in (0, 1), but got 0.0."),
        ({"delta": 1.0}, ValueError, "delta must be a number in (0, 1), but got 1.0."),
        ({"delta": [0.1, 0.2, 0.3]}, ValueError, "delta must be one number or 2, one for each layer, but got 3."),
        ({"a": 0.5}, ValueError, "a must be a number >= 1, but got 0.5."),
        ({"b": 0.5}, ValueError, "b must be a number >= 1, but got 0.5."),
        ({"nu": -1.0}, ValueError, "nu must be a number >= 0, but got -1.0."),
        ({"lam": -1.0}, ValueError, "lam must be a number >= 0, but got -1.0."),
        ({"rho": 1.5}, ValueError, "rho must be a number in [0, 1], but got 1.5."),
        ({"kappa": (-1.0, 1.0)}, ValueError, "kappa[0] must be a number >= 0, but got -1.0."),
        ({"kappa": (1.0, math.nan)}, ValueError, "kappa[1] must be a number >= 0, but got nan."),
        (
            {"kappa": 5e-4},
            TypeError,
            "kappa must be a pair (kappa0, kappa1) of numbers >= 0 or None, but got 0.0005.",
        ),
        ({"adapt": "sa"}, TypeError, "adapt must be SA(...), EM(), Marginal() or Fixed(), but got 'sa'."),
        (
            {"sigma_coupling": "shared"},
            ValueError,
            "sigma_coupling must be one of 'conjugate', 'independent', 'fixed', but got 'shared'.",
        ),
        (
            {"sigma_average": "mean"},
            ValueError,
            "sigma_average must be one of 'sigma', 'variance', but got 'mean'.",
        ),
    ],
)
def test_settings_of_the_spike_and_slab(cls, settings, error, message: str) -> None:
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    with pytest.raises(error) as caught:
        cls(weights, **{"v0": 0.1, "v1": 10.0} | settings)
    assert str(caught.value) == message


def test_independent_sigma_of_a_classification_stops_before_anything_moves() -> None:
    weight = nn.Parameter(torch.ones(2))
    prior = ss.SpikeSlab([weight], v0=0.1, v1=1.0, sigma_coupling="independent")
    sampler = ss.SGLD([weight], lr=0.1, num_data=10, prior=prior)
    weight.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"^sigma_coupling must be 'conjugate' or 'fixed' for classification"):
        sampler.step()
    assert weight.tolist() == [1.0, 1.0]
    assert sampler.steps == 0


def test_a_schedule_that_turns_negative_stops_before_anything_moves() -> None:
    weight = nn.Parameter(torch.ones(2))
    sampler = ss.SGLD([weight], lr=lambda k: 0.1 if k == 1 else -0.1, num_data=10, temperature=0.0)
    weight.grad = torch.ones(2)
    sampler.step()
    before = weight.tolist()
    with pytest.raises(ValueError, match=r"^lr must be a number >= 0, but got -0\.1\.$"):
        sampler.step()
    assert weight.tolist() == before
    assert (sampler.steps, sampler.param_groups[0]["lr"]) == (1, 0.1)


def test_an_lr_schedule_and_a_torch_scheduler_together_are_refused() -> None:
    weight = nn.Parameter(torch.ones(2))
    sampler = ss.SGLD([weight], lr=ss.schedules.constant(0.1), num_data=10)
    torch.optim.lr_scheduler.StepLR(sampler, 10)
    weight.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"^lr must have a schedule or a torch LR scheduler, but it has both"):
        sampler.step()
    assert weight.tolist() == [1.0, 1.0]


class TestChecks:
    def test_intervals_mean_what_they_say(self) -> None:
        for allowed, inside, outside in [
            ("[0, 1)", [0, 0.5, 0.999], [-1e-9, 1]),
            ("(0, 1)", [1e-9, 0.5], [0, 1]),
            ("[0, 1]", [0, 1], [-0.1, 1.1]),
            ("> 0", [1e-300], [0, -1]),
            (">= 1", [1, 2], [0.999]),
        ]:
            for value in inside:
                assert check_number("x", value, allowed) == value
            for value in outside:
                with pytest.raises(ArgumentValueError):
                    check_number("x", value, allowed)

    def test_numbers_of_other_libraries_are_numbers(self) -> None:
        import numpy as np

        assert check_number("x", np.float32(0.5), "> 0") == 0.5
        assert check_count("n", np.int64(3)) == 3
        with pytest.raises(TypeError, match="but got True"):
            check_count("n", True)

    def test_choices_and_lists_of_names(self) -> None:
        assert check_choice("mode", "a", ("a", "b")) == "a"
        with pytest.raises(ValueError, match=r"^mode must be one of 'a', 'b', but got 3\.$"):
            check_choice("mode", 3, ("a", "b"))
        assert quote([str(i) for i in range(10)]) == "'0', '1', '2', '3', '4', '5', '6', '7' and 2 more"


def test_a_prior_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError) as error:
        ss.SGLD([nn.Parameter(torch.zeros(2))], lr=0.1, num_data=10, prior="spike")
    assert str(error.value) == "prior must be a prior such as SpikeSlab(...) or None, but got 'spike'."


def test_groups_must_agree_on_num_data_where_there_is_a_prior() -> None:
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError) as error:
        ss.SGLD(
            [{"params": [first]}, {"params": [second], "num_data": 20}],
            lr=0.1,
            num_data=10,
            prior=ss.L2([first], 1.0),
        )
    assert str(error.value) == "num_data must be the same in all groups if there is a prior, but got [10, 20]."


def test_a_marginal_prior_needs_sigma_in_rho() -> None:
    with pytest.raises(ValueError, match="sigma_in_rho must be True with adapt=Marginal"):
        ss.SpikeSlab([nn.Parameter(torch.zeros(2))], v0=0.1, v1=1.0, adapt=ss.Marginal(), sigma_in_rho=False)


def test_the_noise_is_unknown_where_a_link_gives_no_probabilities_and_there_is_no_likelihood() -> None:
    posterior = ss.Posterior(nn.Linear(2, 1), link=lambda outputs: outputs + 5.0)
    posterior.collect()
    prediction = posterior.predictive(torch.zeros(3, 2))
    assert prediction.aleatoric.isnan().all()
    assert prediction.epistemic.tolist() == [[0.0]] * 3


def test_all_zero_weights_leave_sigma_above_zero() -> None:
    prior = ss.SpikeSlab([torch.zeros(3)], v0=0.1, v1=1.0, nu=0.0, sigma_coupling="conjugate", adapt=ss.EM())
    prior.update(1, num_data=10)
    assert 0.0 < prior.sigma < 1e-6
    prior.update(2, num_data=10)


def test_a_frozen_layer_without_weights_stays_as_it_is() -> None:
    weight = nn.Parameter(torch.zeros(4))
    pruner = ss.Pruner([weight], 0.5)
    pruner.freeze()
    with torch.no_grad():
        weight.fill_(1.0)
    pruner.step()
    assert weight.count_nonzero() == 0

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (10**400, "10000000000000000000... (401 characters)"),
            (-(10**400), "-1000000000000000000... (402 characters)"),
            (10**5000, "a number of more than 4,300 digits"),
            (Fraction(10**400, 3), "Fraction(10000000000... (413 characters)"),
        ],
        ids=["large", "negative", "unwritable", "fraction"],
    )
    def test_a_number_beyond_the_largest_float_is_one_sentence(self, value, shown: str) -> None:
        for allowed, words in ((">= 0", ">= 0"), ("(0, 1)", "in (0, 1)")):
            with pytest.raises(ArgumentValueError) as caught:
                check_number("x", value, allowed)
            message = f"x must be a number {words}, but got {shown}: a float holds numbers up to 1.8e+308."
            assert str(caught.value) == message

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (2**63, "n must be an integer below 2**63, but got 9223372036854775808."),
            (10**400, "n must be an integer below 2**63, but got 10000000000000000000... (401 characters)."),
            (10**5000, "n must be an integer below 2**63, but got a number of more than 4,300 digits."),
            (-(10**400), "n must be an integer >= 1, but got -1000000000000000000... (402 characters)."),
        ],
        ids=["64 bits", "large", "unwritable", "negative"],
    )
    def test_a_count_beyond_64_bits_is_one_sentence(self, value: int, message: str) -> None:
        with pytest.raises(ArgumentValueError) as caught:
            check_count("n", value)
        assert str(caught.value) == message
        assert check_count("n", 2**63 - 1) == 2**63 - 1
        assert check_count("seed", 2**63, bits=64) == 2**63


@pytest.mark.parametrize("value", [10**400, 10**5000], ids=["large", "unwritable"])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda p, v: ss.SGHMC(p, v, num_data=9), "lr"),
        (lambda p, v: ss.SGHMC(p, lambda k: v, num_data=9), "lr"),
        (lambda p, v: ss.SGHMC(p, 0.1, num_data=v), "num_data"),
        (lambda p, v: ss.SGHMC(p, 0.1, num_data=9, seed=v), "seed"),
        (lambda p, v: ss.SGHMC(p, 0.1, num_data=9).retemper(v), "temperature"),
        (lambda p, v: ss.SpikeSlab(p, v0=v), "v0"),
        (lambda p, v: ss.SpikeSlab(p, kappa=(v, v)), r"kappa\[0\]"),
        (lambda p, v: ss.L2(p, v), "strength"),
        (lambda p, v: ss.Pruner(p, v), "sparsity"),
        (lambda p, v: ss.Pruner(p, 0.5, freeze_at=v), "freeze_at"),
        (lambda p, v: ss.SA(lambda k: v).omega(1), "omega"),
        (lambda p, v: ss.schedules.cosine(v, 9), "initial"),
        (lambda p, v: ss.schedules.cosine(0.1, v), "total"),
        (lambda p, v: ss.schedules.constant(0.1)(v), "step"),
        (lambda p, v: ss.Posterior(nn.Linear(2, 2), max_samples=v), "max_samples"),
        (lambda p, v: ss.training.Every(steps=v), "steps"),
        (lambda p, v: ss.training.Every(seconds=v), "seconds"),
        (lambda p, v: ss.training.TensorBatches(torch.ones(2, 2), batch_size=v), "batch_size"),
        (lambda p, v: ss.compression.Settings(lr=v), "lr"),
        (lambda p, v: ss.compress(nn.Linear(2, 2), [], sparsity=v), "sparsity"),
        (lambda p, v: ss.compress(nn.Linear(2, 2), [], seed=v), "seed"),
    ],
)
def test_huge_integers_are_refused_by_what_takes_numbers(make, name: str, value: int) -> None:
    with pytest.raises(ArgumentValueError, match=rf"^{name} must be an? .*\.$"):
        make([nn.Parameter(torch.ones(4))], value)


@pytest.mark.parametrize(
    ("lr", "kind", "message"),
    [
        (lambda k: None, TypeError, "lr must be a number >= 0, but got None."),
        (lambda k: torch.tensor(-1.0), ValueError, "lr must be a number >= 0, but got -1.0."),
    ],
)
def test_a_schedule_must_return_a_number(lr, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        ss.SGLD([nn.Parameter(torch.ones(2))], lr=lr, num_data=10)
    assert str(caught.value) == message


def test_the_step_size_of_the_latents_is_a_finite_number_of_the_step() -> None:
    with pytest.raises(TypeError) as caught:
        ss.SA(0.5)
    assert str(caught.value) == "schedule must be a function of the step, but got 0.5: see spikeslab.schedules."
    with pytest.raises(ValueError, match=r"^omega must be a number in \(-inf, inf\), but got nan\.$"):
        ss.SA(lambda step: math.nan).omega(1)
    assert ss.SA(lambda step: torch.tensor(2.0)).omega(1) == 1.0
