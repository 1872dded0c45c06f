"""The law, the independence and the reproducibility of the counter-based noise."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import special, stats

numba = pytest.importorskip("numba")

from spikeslab.kernels import philox_numba as philox  # noqa: E402

DTYPES = (np.float32, np.float64)
MASK = 0xFFFFFFFF
SEED = 20110814


def normals(n, seed=SEED, step=1, stream=0, offset=0, dtype=np.float32):
    """Elements of a stream, from ``offset`` on."""
    if offset == 0:
        out = np.full(n, np.nan, dtype)
        philox.fill_normal(out, seed, step, stream)
        return out
    size = philox.BLOCK_BYTES // np.dtype(dtype).itemsize
    first, last = offset // size, -(-(offset + n) // size)
    blocks = np.full((last - first, size), np.nan, dtype)
    for block in range(first, last):
        philox.normal_block(blocks[block - first], seed, step, stream, block)
    return blocks.reshape(-1)[offset - first * size :][:n]


def reference_philox(counter, key, rounds=philox.ROUNDS):
    """Philox4x32 as the paper's equations have it, in Python's integers."""
    a, b, c, d = counter
    x, y = key
    for _ in range(rounds):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ x, q & MASK, (p >> 32) ^ d ^ y, p & MASK
        x, y = (x + 0x9E3779B9) & MASK, (y + 0xBB67AE85) & MASK
    return a, b, c, d


def reference_normal(seed, step, stream, element, dtype):
    """The value of one element from the definition, with numpy's log, cos and sin in float64."""
    size, bits = (1024, 32) if dtype == np.float32 else (512, 64)
    block, within = divmod(element, size)
    pair = within % (size // 2)
    counter = block * 256 + (pair // 2 if bits == 32 else pair)
    c1 = counter >> 32 | (0 if bits == 32 else 1 << 31)
    w = reference_philox((counter & MASK, c1, step, stream), (seed & MASK, seed >> 32))
    if bits == 64:
        x, y = w[0] << 32 | w[1], w[2] << 32 | w[3]
    else:
        x, y = (w[0], w[2]) if pair % 2 else (w[1], w[3])
    return reference_transform(x, y, bits)[int(within >= size // 2)]


def reference_transform(x, y, bits):
    top = 1 << (bits - 1)
    if bits == 32:
        distance, v = ((x % top) + 0.5) * 2.0**-32, 2.0 * (((2 * y) & MASK) ^ top) / 2.0**32 - 1.0
    else:
        distance, v = ((x % top >> 11) + 0.5) * 2.0**-53, ((y % top >> 11) + 0.5) * 2.0**-51 - 1.0
    radius = np.sqrt(-2.0 * (np.log1p(-distance) if x >= top else np.log(distance)))
    return (-radius if y >= top else radius) * np.cos(np.pi / 2 * v), radius * np.sin(np.pi / 2 * v)


def words_of(counter, key):
    out = np.zeros(512, np.uint64)
    philox._philox_words(out, *(np.uint64(v) for v in (*counter, *key)))
    return tuple(int(w) for i in (0, 256) for w in (out[i] >> np.uint64(32), out[i] & np.uint64(MASK)))


def transform(x, y, dtype):
    """Apply the production transform to one pair of words."""
    out = np.zeros(philox.BLOCK_BYTES // np.dtype(dtype).itemsize, dtype)
    bits = out.view(np.uint32 if dtype == np.float32 else np.uint64)
    bits[: out.size // 2], bits[out.size // 2 :] = x, y
    (philox._box_muller_f32 if dtype == np.float32 else philox._box_muller_f64)(out)
    return out[0], out[out.size // 2]


ZEROS, ONES = (0,) * 4, (MASK,) * 4
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
KEYS = ((0, 0), (MASK, MASK), (0xA4093822, 0x299F31D0))


# The vectors that Random123 is distributed with.
@pytest.mark.parametrize(
    ("rounds", "counter", "key", "words"),
    [
        (10, ZEROS, KEYS[0], (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (10, ONES, KEYS[1], (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (10, PI, KEYS[2], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
        (7, ZEROS, KEYS[0], (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        (7, ONES, KEYS[1], (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
        (7, PI, KEYS[2], (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
    ],
)
def test_known_answers(rounds, counter, key, words):
    assert reference_philox(counter, key, rounds) == words
    if rounds == philox.ROUNDS:
        assert words_of(counter, key) == words


def test_every_counter_of_a_block():
    out = np.zeros(512, np.uint64)
    philox._philox_words(out, *(np.uint64(v) for v in (MASK - 255, 3, 5, 7, 11, 13)))
    for j in range(256):
        a, b, c, d = reference_philox((MASK - 255 + j, 3, 5, 7), (11, 13))
        assert (int(out[j]), int(out[256 + j])) == (a << 32 | b, c << 32 | d)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 7 * 1024 + 3, 2**33 - 700, 2**40 + 12345])
def test_elements_follow_the_definition(dtype, offset):
    seed, step, stream = 0x123456789ABCDEF0, MASK - 1, MASK - 2
    got = normals(1500, seed, step, stream, offset, dtype)
    expected = [reference_normal(seed, step, stream, offset + i, dtype) for i in range(1500)]
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 if dtype == np.float32 else 3e-15)


EDGES = (0, 1, 2, 2**23, 2**24 + 1, 2**30, 2**31 - 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_transform_at_the_ends_of_the_uniform(dtype):
    bits = 32 if dtype == np.float32 else 64
    words = [e << (bits - 32) for e in EDGES] + [(1 << bits) - 1 - (e << (bits - 32)) for e in EDGES]
    # The first word above one half is the uniform nearest to 1: a radius of almost zero.
    words += [1 << (bits - 1), (1 << (bits - 1)) + 1]
    for x in words:
        for y in words:
            got, expected = transform(x, y, dtype), reference_transform(x, y, bits)
            assert np.isfinite(got).all()
            # Close relative to the radius, however small or large that is.
            tolerance = 4e-7 if dtype == np.float32 else 1e-15
            np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.hypot(*expected))


def test_the_largest_and_the_smallest_radius():
    assert np.hypot(*transform(0, 12345, np.float32)) == pytest.approx(np.sqrt(66 * np.log(2)), rel=1e-6)
    assert np.hypot(*transform(1 << 31, 12345, np.float32)) == pytest.approx(2.0**-16, rel=1e-6)
    assert np.hypot(*transform(0, 12345, np.float64)) == pytest.approx(np.sqrt(108 * np.log(2)), rel=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments(dtype):
    n = 10**7
    z = normals(n, dtype=dtype).astype(np.float64)
    z2 = z * z
    z4 = z2 * z2
    powers = {1: z, 2: z2, 3: z2 * z, 4: z4, 6: z4 * z2, 8: z4 * z4}
    for power, mean, variance in (
        (1, 0, 1),
        (2, 1, 2),
        (3, 0, 15),
        (4, 3, 96),
        (6, 15, 10170),
        (8, 105, 2016000),
    ):
        assert abs(np.mean(powers[power]) - mean) < 4 * np.sqrt(variance / n), power


@pytest.mark.parametrize("dtype", DTYPES)
def test_kolmogorov_smirnov_and_anderson_darling(dtype):
    n = 10**7
    z = np.sort(normals(n, step=2, dtype=dtype)).astype(np.float64)
    cdf = special.ndtr(z)
    grid = np.arange(1, n + 1)
    ks = max(np.max(grid / n - cdf), np.max(cdf - (grid - 1) / n)) * np.sqrt(n)
    # 1.63 and 3.88 are exceeded with probability 0.01 by a normal.
    assert ks < 1.63
    log_cdf, log_survival = special.log_ndtr(z), special.log_ndtr(-z)[::-1]
    anderson_darling = -n - np.mean((2 * grid - 1) * (log_cdf + log_survival))
    assert anderson_darling < 3.88


@pytest.mark.parametrize("dtype", DTYPES)
def test_bins(dtype):
    """Chi-square over 4096 equally likely bins, for the cosine and the sine halves of the blocks apart."""
    z = normals(2**23, step=3, dtype=dtype).reshape(-1, 2, philox.BLOCK_BYTES // np.dtype(dtype).itemsize // 2)
    for half in (0, 1):
        bins = (special.ndtr(z[:, half].ravel().astype(np.float64)) * 4096).astype(np.int64)
        assert 1e-3 < stats.chisquare(np.bincount(bins, minlength=4096)).pvalue < 1 - 1e-3


def test_pairs_are_uniform_on_the_circle():
    z = normals(2**23, step=4).reshape(-1, 2, 512).astype(np.float64)
    angle = np.arctan2(z[:, 1], z[:, 0]).ravel() / (2 * np.pi) + 0.5
    uniform = np.exp(-0.5 * (z**2).sum(axis=1)).ravel()
    cells = np.minimum(angle * 64, 63).astype(int) * 64 + np.minimum(uniform * 64, 63).astype(int)
    assert 1e-3 < stats.chisquare(np.bincount(cells, minlength=4096)).pvalue < 1 - 1e-3


def count_tails(n, thresholds, step, dtype):
    counts = np.zeros((2, len(thresholds)), np.int64)
    out = np.empty(2**22, dtype)
    for k in range(n // out.size):
        philox.fill_normal(out, SEED, step, stream=k)
        large = out[np.abs(out) > thresholds[0]]
        for i, t in enumerate(thresholds):
            counts[:, i] += np.count_nonzero(large > t), np.count_nonzero(large < -t)
    return counts, n // out.size * out.size


def check_tails(n, thresholds, step, dtype):
    counts, n = count_tails(n, thresholds, step, dtype)
    expected = n * special.ndtr(-np.array(thresholds))
    for side in counts:
        for count, mean in zip(side, expected, strict=True):
            assert stats.poisson.cdf(count, mean) > 1e-3
            assert stats.poisson.sf(count - 1, mean) > 1e-3


@pytest.mark.parametrize(("dtype", "n"), [(np.float32, 3 * 10**8), (np.float64, 10**8)])
def test_tails(dtype, n):
    check_tails(n, (4.0, 4.5, 5.0), 5, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_far_tails(dtype):
    check_tails(10**10, (4.0, 5.0, 5.5, 6.0), 6, dtype)


@pytest.mark.slow
def test_law_of_many_draws():
    """Chi-square of 4 * 10^9 float32 draws over 1024 bins: a bias of 1e-5 of a bin's probability shows."""
    edges = special.ndtri(np.arange(1, 1024) / 1024)
    counts = np.zeros(1024, np.int64)
    for k in range(1000):
        z = np.sort(normals(2**22, step=7, offset=k * 2**22)).astype(np.float64)
        counts += np.diff(np.searchsorted(z, edges), prepend=0, append=z.size)
    assert 1e-3 < stats.chisquare(counts).pvalue < 1 - 1e-3


def assert_uncorrelated(a, b):
    """Check products of values, squares, signs and cubes (Hermite polynomials) against 5 standard errors."""
    a, b = (z.astype(np.float64) for z in (a, b))
    polynomials = [(z, z * z - 1, np.sign(z), z * (z * z - 3)) for z in (a, b)]
    for u, v, variance in zip(*polynomials, (1, 2, 1, 6), strict=True):
        assert abs(u @ v) < 5 * variance * np.sqrt(a.size)
    assert abs(a @ polynomials[1][1]) < 5 * np.sqrt(2 * a.size)


N = 2**18


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "other",
    [
        *({"step": 1 + d} for d in (1, 2, 3, 2**8, 2**16, 2**31)),
        *({"stream": d} for d in (1, 2, 3, 2**8, 2**16, 2**31)),
        *({"seed": SEED ^ d} for d in (1, 2, 4, 2**16, 2**31, 2**32, 2**33, 2**63)),
        *({"offset": d} for d in (1, 2, 4, 8, 128, 256, 512, 768, 1024, 2048, 2**16, 2**32, 2**34, 2**42)),
        {"step": 0, "stream": 1},
        {"seed": 1, "step": SEED},
    ],
)
def test_independence(dtype, other):
    assert_uncorrelated(normals(N, dtype=dtype), normals(N, dtype=dtype, **other))


def test_float32_and_float64_are_independent():
    assert_uncorrelated(normals(N), normals(N, dtype=np.float64))
    # Element by element of the same counter: without a domain of its own a float64 would repeat a float32.
    single = normals(N).reshape(-1, 2, 256, 2)
    double = normals(N // 2, dtype=np.float64).reshape(-1, 2, 256)
    for word in (0, 1):
        for order in (1, -1):
            assert_uncorrelated(single[..., word].ravel(), double[:, ::order].ravel())


@pytest.mark.parametrize("axis", ["step", "stream", "seed"])
def test_correlation_matrix_of_many_vectors(axis):
    """All pairs of 128 neighbours: the largest and the sum of squares of the 8128 correlations."""
    z = np.stack([normals(2**15, **{axis: k}) for k in range(128)])
    r = (z @ z.T / z.shape[1])[np.triu_indices(128, 1)] * np.sqrt(z.shape[1])
    assert np.abs(r).max() < 5.5
    assert 1e-3 < stats.chi2.sf(np.sum(r.astype(np.float64) ** 2), r.size) < 1 - 1e-3


def test_sums_over_steps_are_normal():
    """Random walks of 1000 steps: bias or correlation over time would make them too wide or too narrow."""
    walk = np.zeros(2**14)
    for step in range(1000):
        walk += normals(walk.size, step=step)
    z = walk / np.sqrt(1000)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert abs(np.mean(z**2) - 1) < 4 * np.sqrt(2 / z.size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_values_at_each_number_of_threads(dtype):
    for n in (0, 1, 1023, 1024, 1025, 100_003, 1_000_001):
        drawn = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            drawn.append(normals(n, dtype=dtype))
        assert np.isfinite(drawn[0]).all()
        assert drawn[0].tobytes() == drawn[1].tobytes()


def test_writes_nothing_outside():
    frame = np.full(5000, 7.0, np.float32)
    philox.fill_normal(frame[1001:4001], SEED, 1, 0)
    assert (frame[:1001] == 7).all()
    assert (frame[4001:] == 7).all()
    assert (frame[1001:4001] == normals(3000)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_block_in_a_kernel(dtype):
    normal_block, size = philox.normal_block, philox.BLOCK_BYTES // np.dtype(dtype).itemsize

    # Fast-math of the kernel must not reach the noise.
    @numba.njit(fastmath=True)
    def kernel(out, seed, step, stream):
        scratch = np.empty(size, out.dtype)
        for block in range(out.size // size):
            normal_block(scratch, seed, step, stream, block)
            for i in range(size):
                out[block * size + i] = scratch[i]

    out = np.empty(8 * size, dtype)
    kernel(out, np.uint64(SEED), 1, 0)
    assert out.tobytes() == normals(out.size, dtype=dtype).tobytes()
    philox.normal_block(out[:size], SEED, 1, 0, 3)
    assert out[:size].tobytes() == out[3 * size : 4 * size].tobytes()


# Of one run; another machine or compiler must reproduce them to the last bit.
DIGESTS = {np.float32: "93611d1b0d283be10fc9ae21d1109893", np.float64: "77456cd33e6622c2e4402976e94565cd"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_as_ever(dtype):
    assert hashlib.sha256(normals(2**16, dtype=dtype).tobytes()).hexdigest()[:32] == DIGESTS[dtype]


SCRIPT = """
import hashlib, numpy as np
from spikeslab.kernels import philox_numba as philox
for dtype in (np.float32, np.float64):
    out = np.empty(2**16, dtype)
    philox.fill_normal(out, %d, 1, 0)
    print(hashlib.sha256(out.tobytes()).hexdigest()[:32])
print(sum(philox._fill_blocks.stats.cache_hits.values()))
"""


def run_script(cache, **environment):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), **environment}
    command = [sys.executable, "-c", SCRIPT % SEED]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("cpu", [{}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, {"NUMBA_OPT": "0"}])
def test_same_bits_without_simd_or_optimisation_and_from_the_cache(tmp_path, cpu):
    digests = list(DIGESTS.values())
    assert run_script(tmp_path, **cpu) == [*digests, "0"]
    if "NUMBA_OPT" not in cpu:  # numba caches nothing without optimisation
        assert run_script(tmp_path, **cpu) == [*digests, "2"]
