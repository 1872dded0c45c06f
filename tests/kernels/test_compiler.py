"""Memory of numba's compiler: let go once the kernels are loaded, and never what was written to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

from spikeslab.kernels import _compiler
from spikeslab.kernels._compiler import LIBRARY, Mapping, find_mappings, release_compiler

needs_proc = pytest.mark.skipif(not _compiler.SMAPS.exists(), reason="needs /proc")

STEP = """
import numpy as np, torch
import spikeslab as ss
from spikeslab.kernels import fused, magnitudes
from spikeslab.kernels._compiler import find_mappings, release_compiler

def resident():
    return sum(found.resident for found in find_mappings("libllvmlite"))

fused.load(np.float32)
magnitudes._load(4)
after = resident()
kernels = fused.update, fused.are_finite, magnitudes._gather, magnitudes._zero_below, magnitudes._zero_marked
loaded = [len(kernel.signatures) for kernel in kernels]
weight = torch.nn.Parameter(torch.arange(1.0, 3001.0))
prior = ss.SpikeSlab([weight], v0=0.01, v1=1.0, sigma_coupling={coupling!r})
sampler = ss.SGHMC([weight], lr=1e-3, num_data=10, prior=prior, seed=0)
for _ in range(2):
    weight.grad = torch.ones(3000)
    sampler.step()
ss.Pruner([weight], 0.5).step()
ss.Pruner([weight], 0.6, mode="masked").step()
print(loaded, [len(kernel.signatures) for kernel in kernels], after, resident())
"""


@needs_proc
@pytest.mark.parametrize("coupling", ["fixed", "conjugate"])
def test_steps_use_the_kernels_that_were_loaded_and_leave_the_compiler_alone(coupling: str):
    code = STEP.format(coupling=coupling)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.startswith("[1, 1, 1, 1, 1] [1, 1, 1, 1, 1] ")
    assert max(map(int, found.split("]")[-1].split())) < 10 * 2**20  # before: some 70 MB


@needs_proc
def test_the_compiler_still_works_and_its_written_pages_stay():
    from numba import njit

    def written() -> list[Mapping]:
        return [found for found in find_mappings(LIBRARY) if not found.is_file_content]

    assert njit(lambda x: x + 1)(1) == 2
    before = written()
    assert any(found.anonymous for found in before)
    assert release_compiler() > 2**20
    assert written() == before
    assert njit(lambda x: x + 2)(1) == 3


def test_a_system_that_does_not_list_its_mappings_releases_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(_compiler, "SMAPS", tmp_path / "none")
    assert release_compiler() == 0
