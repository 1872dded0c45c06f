import threading
import time

import numpy as np
import pytest

from spikeslab.sklearn import SpikeSlabRegressor
from spikeslab.sklearn._chains import Chain, run_chains, spawn


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


def test_verbose_fits_show_their_progress(capsys):
    X = np.random.default_rng(0).normal(size=(20, 3))
    SpikeSlabRegressor(n_iter=10, burn_in=10, n_chains=2, random_state=0).fit(X, X[:, 0])
    assert capsys.readouterr().err == ""
    SpikeSlabRegressor(n_iter=10, burn_in=10, n_chains=2, random_state=0, verbose=1).fit(X, X[:, 0])
    assert capsys.readouterr().err.splitlines()[-1] == "SpikeSlabRegressor: 40 of 40 steps"
