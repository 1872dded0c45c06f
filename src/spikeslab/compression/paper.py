r"""The paper's recipe for CIFAR-10, in any number of steps.

Its run has 50,000 steps. To run in K = 50,000/c of them is to take :math:`c\,\omega(ck)` (the sum of omega, 0.75,
stays), the same ramp and the same cooling over the run, and c times the lr, so that the shrinkage by the prior, lr
times kappa times steps, stays. The settings are those of ``presets.paper_cifar10``: the spike is wider than the slab,
kappa starts near zero, and ``SpikeSlab`` warns of the former.
"""

from __future__ import annotations

from spikeslab.compression.methods import PAPER_STEPS
from spikeslab.compression.settings import Settings
from spikeslab.errors import check_count
from spikeslab.presets import paper_cifar10

PAPER_LR, PAPER_COOLING, PAPER_OMEGA_SUM = 1e-4, 1.005**1000, 0.752
ADAPTED = ("adapt",)


def paper_settings(sparsity: float, steps: int) -> Settings:
    """The recipe of the paper's Table 3 for 30, 50, 70 or 90 % of the network, compressed to ``steps`` steps.

    The methods are its rows: ``"a-sghmc-sa"``, ``"sghmc-sa"``, ``"a-sghmc-em"`` and ``"a-sghmc"``.

    >>> recipe = paper_settings(0.9, steps=5000)
    >>> round(recipe.lr, 9), recipe.lr_schedule, recipe.prior["v0"]
    (0.001, 'steps', 0.005)
    """
    steps = check_count("steps", steps)
    prior = {name: value for name, value in paper_cifar10(sparsity).prior.items() if name not in ADAPTED}
    return Settings(
        lr=PAPER_LR * PAPER_STEPS / steps,
        lr_schedule="steps",
        drops=(0.7, 0.9),
        warmup=0.0,
        weight_decay=5e-4,
        temperature=1e-3,
        cooling=PAPER_COOLING,
        ramp="exponential",
        prune_until=0.7,
        freeze_at=0.7,
        collect_from=0.75,
        omega_sum=PAPER_OMEGA_SUM,
        condition=False,
        prior=prior,
    )
