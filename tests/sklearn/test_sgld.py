import numpy as np
import pytest

from spikeslab.sklearn._sgld import SGLDChain, SGLDOptions


def _data(rng, n=30, p=6):
    X = rng.standard_normal((n, p))
    return X, X[:, 0] + rng.standard_normal(n)


def test_divergence_says_what_to_do(rng):
    X, y = _data(rng)
    chain = SGLDChain(X, y, 0, "sgld", SGLDOptions(step=(1e3, 0.0, 0.0), batch_size=30), 2000, 2000, rng)
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError) as error:
        chain.advance(2000)
    rows, columns = X.shape
    assert str(error.value) == (
        f"The chain diverged before step 2000: steps of sgld.step = 1000 are too large for {rows} rows of {columns} "
        "variables; use method='auto', or smaller steps, such as sgld=SGLDOptions(step=(100, 0, 0))."
    )


@pytest.mark.parametrize(("classes", "step"), [(0, 0.001), (2, 1.0), (3, 1.0)])
def test_a_chain_that_is_thrown_about_for_ever_has_diverged(classes, step, rng):
    """The paper's steps on 200 times as many rows: sigma grows with the coefficients, and all numbers stay finite."""
    X = rng.standard_normal((20_000, 4))
    score = X[:, 0] + rng.standard_normal(20_000)
    y = np.digitize(score, [-0.5, 0.5][: classes - 1]).astype(float) if classes else score - score.mean()
    chain = SGLDChain(X, y, classes, "sgld-sa", SGLDOptions(step=(step, 0.0, 1 / 3)), 500, 2500, rng)
    while chain.done < 2500:
        chain.advance(500)
    assert all(np.isfinite(draw[0]).all() for draw in chain.kept)
    with pytest.raises(FloatingPointError, match=r"too large for 20,000 rows of 4 variables; use method='auto'"):
        chain.collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"v0": 0.0}, "v0 must be a number > 0, but got 0.0."),
        ({"delta": 1.0}, "delta must be a number in (0, 1), but got 1.0."),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, but got 0."),
        ({"step": (0.1, 0.0)}, "step must be three numbers (A, B, alpha), but got (0.1, 0.0)."),
        ({"step": (-1.0, 0.0, 0.3)}, "step[0] must be a number > 0, but got -1.0."),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError) as error:
        SGLDOptions(**options)
    assert str(error.value) == message
