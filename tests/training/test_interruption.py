"""Signals that stop a run."""

import functools
import json
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from runs import EPOCHS, STEPS, run_in, same, training
from torch import nn

from spikeslab.training import Checkpoints, Interrupted
from spikeslab.training.interruption import record_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_step_saves_and_says_so(number: int, tmp_path: Path, finished: dict) -> None:
    run, before = training(tmp_path), signal.getsignal(number)
    inner = run.loss

    @functools.wraps(inner)
    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        if run.steps == 41:
            os.kill(os.getpid(), number)
        return inner(model, batch)

    run.loss = loss
    message = f"Stopped after step 42 of {STEPS}. The state is saved in {tmp_path}: continue with resume=True."
    with pytest.raises(Interrupted) as caught:
        run.run(epochs=EPOCHS, folder=tmp_path)
    assert str(caught.value) == message
    assert caught.value.exit_code == 128 + number
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["status"], record["steps"], record["message"]) == ("interrupted", 42, message)
    assert signal.getsignal(number) is before
    run_in(tmp_path)
    assert same(Checkpoints(tmp_path / "checkpoints").latest().state, finished)


def test_signals_are_recorded_in_the_main_thread_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    handlers = []

    def look() -> None:
        with record_signals() as recorded:
            handlers.append((signal.getsignal(signal.SIGINT), recorded))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [(before, [])]
