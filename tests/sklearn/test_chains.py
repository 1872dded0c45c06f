import threading
import time

import numpy as np
import pytest

from spikeslab.sklearn import SpikeSlabRegressor
from spikeslab.sklearn._chains import Buffer, Chain, record, run_chains, spawn
from spikeslab.sklearn._gibbs_linear import GramChain, GramData
from spikeslab.sklearn._sweep import PointMassPrior

PRIOR = PointMassPrior(a=1.0, b=2.0, slab_df=3.0, slab_scale=1.0)


class _Counter(Chain):
    def __init__(self, fail_at=None):
        self.fail_at = fail_at
        self.done = 0

    def advance(self, steps):
        time.sleep(0.001)
        steps = min(steps, 10)
        self.done += steps
        if self.fail_at is not None and self.done >= self.fail_at:
            raise RuntimeError("broken chain")
        return steps

    def collect(self):
        return self.done


def test_every_chain_takes_all_steps_and_progress_ends_at_the_total():
    seen = []
    assert run_chains([_Counter() for _ in range(3)], 500, 2, lambda *a: seen.append(a)) == [500, 500, 500]
    assert seen[-1] == (1500, 1500)


def test_an_error_in_one_chain_stops_all_and_is_raised():
    before = threading.active_count()
    others = [_Counter(), _Counter(fail_at=50)]
    with pytest.raises(RuntimeError, match="broken chain"):
        run_chains(others, 10**9, 2)
    assert others[0].done < 10**9
    assert threading.active_count() == before


def test_an_interrupt_stops_all_chains():
    chains = [_Counter(), _Counter()]

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_chains(chains, 10**9, 2, interrupt)
    assert all(chain.done < 10**9 for chain in chains)


def test_spawn_is_reproducible_and_gives_different_streams():
    first, second = spawn(3, 2), spawn(3, 2)
    assert first[0].random() == second[0].random()
    assert first[1].random() != first[0].random()
    assert spawn(np.random.RandomState(0), 1)[0].random() == spawn(np.random.RandomState(0), 1)[0].random()
    assert len(spawn(np.random.default_rng(0), 4)) == 4


@pytest.mark.parametrize(("total", "thin"), [(50, 1), (101, 2), (1000, 16)])
def test_a_limited_buffer_stores_draws_at_equal_distances(total, thin):
    """However the draws come in, chains of one length store the same ones."""
    for rows in (7, 64):
        buffer = Buffer(3, 1, rows)
        buffer.limit = 100
        for start in range(0, total, rows):
            count = min(rows, total - start)
            for row in range(count):
                buffer.room.scalars[row, 0] = start + row
                beta = np.array([0.0, start + row, 0.0])
                record(beta, np.array([1]), buffer.room, row)
            buffer.flush(count)
        coef, scalars = buffer.collect()
        assert scalars[:, 0].tolist() == list(range(0, total, thin))
        assert coef.toarray()[:, 1].tolist() == list(range(0, total, thin))


def test_a_restarted_chain_forgets_its_draws(rng):
    chain = GramChain(GramData(20.0 * np.eye(2), np.array([20.0, 0.0]), 30.0, 20.0), PRIOR, 10, rng)
    run_chains([chain], 60, 1)
    chain.restart()
    (draws,) = run_chains([chain], 100, 1)
    assert (draws.steps, draws.coef.shape[0], draws.scalars["sigma"].size) == (40, 40, 40)
    assert draws.pip == pytest.approx((draws.coef.toarray() != 0).mean(axis=0), abs=0.2)


def test_verbose_fits_show_their_progress(capsys):
    X = np.random.default_rng(0).normal(size=(20, 3))
    SpikeSlabRegressor(n_iter=10, burn_in=10, n_chains=2, random_state=0).fit(X, X[:, 0])
    assert capsys.readouterr().err == ""
    SpikeSlabRegressor(n_iter=10, burn_in=10, n_chains=2, random_state=0, verbose=1).fit(X, X[:, 0])
    assert capsys.readouterr().err.splitlines()[-1] == "SpikeSlabRegressor: 40 of 40 steps"
