"""Bytes that sharded ranks exchange, counted in operations and on the wire."""

from __future__ import annotations

import pytest

from spikeslab.bench.scale import ranks
from spikeslab.bench.scale.processes import run_ranks
from spikeslab.bench.scale.traffic import count_received

SHAPES = [2, 32, 4, 16], [2, 64, 4, 16]


@pytest.mark.slow
def test_bytes_of_a_step_are_those_of_the_formulas():
    found = [run_ranks("ranks:measure_steps", 2, shape=shape, repeats=1, seed=0) for shape in SHAPES]
    for rank in (rank for of_shape in found for rank in of_shape):
        gradients, update = rank["exchanged"]
        whole = 4 * rank["parameters"]
        # Weights are gathered for the forward pass, those of the layers again for the backward pass.
        assert whole < gradients["allgather_base"] < 2 * whole
        assert gradients["reduce_scatter_base"] == pytest.approx(whole, rel=0.01)  # padded to equal parts
        assert update == {"allreduce": 8 * (1 + 2 + rank["sparse"])}
    for of_shape in found:
        arrived = of_shape[0]["received"]
        if count_received() is not None:
            gathered, reduced = of_shape[0]["exchanged"][0].values()
            # A rank receives the other's half of what is gathered; gloo reduces as a whole what it scatters.
            assert arrived[0] == pytest.approx(0.5 * gathered + reduced, rel=0.05)
    small, large = (of_shape[0]["received"][1] for of_shape in found)
    assert small == pytest.approx(large, abs=32)  # a barrier among a hundred updates


def test_a_row_has_the_slowest_rank_and_the_time_of_all_processors():
    def rank(wall: float, cpu: float, received: float) -> dict:
        seconds = {"torch SGD, momentum": [(1.0, 1.0), (2.0, 1.0)], "SGHMC-SA": [(wall, cpu), (4.0, cpu)]}
        return {"seconds": seconds, "exchanged": [{"a": 2e6}, {"b": 16}], "received": [received, 16.4]}

    memory = {"torch SGD, momentum": 1e6, "SGHMC-SA": 2e6}
    row = ranks._row(2, [rank(1.5, 1.0, 3e6), rank(1.2, 2.0, 4e6)], memory)
    assert row == {
        "ranks": 2, "step": 1.5, "median": 1.75, "cpu": 1.5, "gradients": 2.0, "received": 4.0, "update": 16,
        "update received": 16, "sgd memory": 1.0, "memory": 2.0,
    }  # fmt: skip


def test_one_rank_has_the_whole_batch():
    chain = ranks._TimedChain("SGHMC-SA", ranks.Shape(1, 16, 4, 8), seed=0)
    chain.step()
    assert chain._x.shape == (ranks.BATCH, 4)
    assert chain.sparse == 4  # two of attention, two linear layers
