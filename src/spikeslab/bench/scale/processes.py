"""Functions of this package in fresh processes, alone or as the ranks of one world, and the memory that they take."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from spikeslab.errors import StateError

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
HEAP_PEAK = "5"
"""What Linux wants to read in ``clear_refs`` before it measures the peak from the present size on."""
CODE = "from spikeslab.bench.scale.processes import serve; serve()"
TIMEOUT, PAUSE = timedelta(minutes=30), 0.05


def run_alone(function: str, **arguments: Any) -> dict[str, Any]:
    """Run a function, ``"module:function"`` of this package, in a fresh process, and return what it returns as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        (found,) = _finish([_Process(Path(folder), function, arguments)])
    return found


def run_ranks(function: str, world: int, **arguments: Any) -> list[dict[str, Any]]:
    """Run a function in a world of gloo processes on this machine, and return what each rank returns."""
    with tempfile.TemporaryDirectory() as folder:
        places = [{"store": str(Path(folder) / "store"), "world": world, "rank": rank} for rank in range(world)]
        return _finish([_Process(Path(folder), function, arguments, place) for place in places])


def serve() -> None:
    """Run the function that the command line of this process names, and print what it returns."""
    function, arguments, place = sys.argv[1], *map(json.loads, sys.argv[2:])
    if place:
        options = {"rank": place["rank"], "world_size": place["world"], "timeout": TIMEOUT}
        dist.init_process_group("gloo", init_method=f"file://{place['store']}", **options)
    module, _, name = function.partition(":")
    called: Callable[..., dict[str, Any]] = getattr(import_module(f"spikeslab.bench.scale.{module}"), name)
    print(json.dumps(called(**arguments)), flush=True)
    if place:
        dist.barrier()
        os._exit(0)  # the threads of gloo may abort while the interpreter ends


class _Process:
    """Process of its own that runs a function; what it writes goes to files, since nobody may read a full pipe."""

    def __init__(
        self, folder: Path, function: str, arguments: dict[str, Any], place: dict[str, Any] | None = None
    ) -> None:
        command = [sys.executable, "-c", CODE, function, json.dumps(arguments), json.dumps(place)]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(torch.get_num_threads()))
        rank = 0 if place is None else place["rank"]
        self._out, self._errors = folder / f"{rank}.out", folder / f"{rank}.err"
        with self._out.open("w") as out, self._errors.open("w") as errors:
            self._process = subprocess.Popen(command, stdout=out, stderr=errors, env=os.environ | threads)

    def has_ended(self) -> bool:
        """Return True if it has.

        Raises:
            StateError: If it has failed.
        """
        code = self._process.poll()
        if code:
            lines = self._errors.read_text().strip().splitlines() or [f"it ended with code {code}"]
            raise StateError(f"A process of the benchmark failed: {lines[-1].rstrip('.')}.")
        return code == 0

    def result(self) -> dict[str, Any]:
        """Return what the function returned."""
        found: dict[str, Any] = json.loads(self._out.read_text().splitlines()[-1])
        return found

    def close(self) -> None:
        """End the process if it runs."""
        self._process.kill()
        self._process.wait()


def _finish(processes: list[_Process]) -> list[dict[str, Any]]:
    """Wait for the processes; if one of them fails, do not wait for those that wait for it."""
    try:
        while True:
            ended = [process.has_ended() for process in processes]
            if all(ended):
                return [process.result() for process in processes]
            time.sleep(PAUSE)
    finally:
        for process in processes:
            process.close()


class PeakMemory:
    """Largest resident memory in bytes from now on, beyond what the process takes now; 0 where only Linux tells."""

    def __init__(self) -> None:
        self.forget()
        self._before = _resident("VmRSS")

    def forget(self) -> None:
        """Forget the peak so far, but not what the process took at first."""
        gc.collect()
        with suppress(OSError):
            RESET.write_text(HEAP_PEAK, encoding="ascii")

    def read(self) -> int:
        """Return the peak so far."""
        return max(0, self.whole() - self._before)

    def whole(self) -> int:
        """Return the peak so far of all that the process takes."""
        return _resident("VmHWM")


def _resident(field: str) -> int:
    with suppress(OSError):
        for line in STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith(field):
                return 1024 * int(line.split()[1])
    return 0
