"""Fixtures of the runs in a folder."""

import pytest
from runs import run_in

from spikeslab.training import Checkpoints


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The state at the end of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_in(folder)
    return Checkpoints(folder / "checkpoints").latest().state
