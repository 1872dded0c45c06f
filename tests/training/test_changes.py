"""Resumes with changed code: every change is refused with a table, or taken as ``on_change`` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import spikeslab as ss
from spikeslab.errors import SpikeSlabWarning
from spikeslab.pruning import Pruner
from spikeslab.training import (
    Checkpoints,
    Collect,
    Every,
    Prune,
    RunFolder,
    ScheduleLR,
    TensorBatches,
    Training,
    cross_entropy,
)
from spikeslab.training.changes import ChangedSettingsError, check_on_change, find_changes

STEPS = 12


def rows(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


def other_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


def double(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return 2 * x


def make(folder: Path | None = None, **changes: Any) -> Training:
    """Return a run in which each argument changes one setting."""
    torch.manual_seed(changes.pop("global_seed", 0))
    model = nn.Sequential(nn.Linear(4, 8), changes.pop("activation", nn.ReLU()), nn.Linear(8, 8), nn.Linear(8, 2))
    model[3].requires_grad_(changes.pop("requires_grad", True))
    weights = ss.select_weights(model, "2.weight")
    prior = {"v0": 0.01, "v1": 1.0, "delta": 0.3, "adapt": ss.SA(ss.polynomial(1.0, 0.75, 3))}
    prior |= {name: changes.pop(name) for name in [*changes] if name in (*prior, "b", "kappa", "sigma", "learn_delta")}
    posterior = {"burn_in": 2, "thin": 3, "max_samples": 9, "link": None}
    posterior |= {name: changes.pop(name) for name in [*changes] if name in posterior}
    pruner = {
        "sparsity": ss.cubic_sparsity(0.5, total=6),
        "scope": "layer",
        "floor": 1,
        "mode": "projected",
        "every": 1,
    }
    pruner |= {name: changes.pop(name) for name in [*changes] if name in pruner}
    data = {"batch_size": 8, "seed": 1, "transform": None, "drop_last": True}
    data |= {name: changes.pop(f"data_{name}") for name in data if f"data_{name}" in changes}
    batches = changes.pop("batches", None) or TensorBatches(*rows(changes.pop("rows", 0)), **data)
    run = {"loss": changes.pop("loss", cross_entropy), "precision": changes.pop("precision", "float32")}
    freeze_at = changes.pop("freeze_at", 8)
    extra = changes.pop("callbacks", lambda sampler: [])
    sampler_settings = {
        "lr": 0.05,
        "momentum": 0.9,
        "num_data": 32,
        "temperature": 0.1,
        "weight_decay": 0.01,
        "seed": 5,
    }
    sampler = ss.SGHMC(model.parameters(), prior=ss.SpikeSlab(weights, **prior), **sampler_settings | changes)
    directory = None if folder is None else folder / "posterior"
    callbacks = [
        Prune(Pruner(weights, pruner.pop("sparsity"), freeze_at=freeze_at, **pruner)),
        Collect(ss.Posterior(model, sampler=sampler, directory=directory, exist_ok=True, **posterior)),
        *extra(sampler),
    ]
    return Training(model, sampler, batches, callbacks=callbacks, **run)


def resume(folder: Path, on_change: Any = "error", steps: int = STEPS, **changes: Any) -> Training:
    run = make(folder, **changes)
    run.run(steps=steps, folder=RunFolder(folder, resume=True, on_change=on_change, checkpoint_every=Every(steps=6)))
    return run


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The folder of a run that has come half of the way, with samples on disk."""
    resume(tmp_path, steps=6)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    inner = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in inner}


CHANGES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "sampler.lr": ({"lr": 0.02}, 0.05, 0.02),
    "sampler.temperature": ({"temperature": 0.5}, 0.1, 0.5),
    "sampler.momentum": ({"momentum": 0.5}, 0.9, 0.5),
    "sampler.weight_decay": ({"weight_decay": 0.0}, 0.01, 0.0),
    "sampler.num_data": ({"num_data": 64}, 32, 64),
    "sampler.seed": ({"seed": 6}, 5, 6),
    "prior.v0": ({"v0": 0.02}, 0.01, 0.02),
    "prior.delta": ({"delta": 0.6}, [0.3], [0.6]),
    "prior.kappa": ({"kappa": (5.0, 1.0)}, None, [5.0, 1.0]),
    "prior.adapt": ({"adapt": ss.EM()}, "SA(schedule=polynomial(scale=1.0,", "EM(schedule=constant(value=1.0))"),
    "pruner.sparsity": ({"sparsity": 0.7}, "cubic_sparsity(target=0.5,", "constant(value=0.7)"),
    "pruner.scope": ({"scope": "global"}, "layer", "global"),
    "pruner.floor": ({"floor": 5}, [1], [5]),
    "pruner.mode": ({"mode": "masked"}, "projected", "masked"),
    "pruner.every": ({"every": 2}, 1, 2),
    "pruner.freeze_at": ({"freeze_at": 9}, 8, 9),
    "posterior.thin": ({"thin": 2}, 3, 2),
    "posterior.burn_in": ({"burn_in": 3}, 2, 3),
    "posterior.max_samples": ({"max_samples": 1}, 9, 1),
    "precision": ({"precision": "bfloat16"}, "float32", "bfloat16"),
    "data.batch_size": ({"data_batch_size": 4}, 8, 4),
    "data.seed": ({"data_seed": 2}, 1, 2),
}
"""Settings of which a checkpoint can give back the old value: the change, and how both are shown."""

CODE: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "loss": ({"loss": other_loss}, "spikeslab.training.loop.cross_entropy", f"{__name__}.other_loss"),
    "data.sha256": ({"rows": 1}, "", ""),
    "data.transform": ({"data_transform": double}, "none", f"{__name__}.double"),
    "model.1": ({"activation": nn.GELU()}, "ReLU()", "GELU(approximate='none')"),
    "model.frozen": ({"requires_grad": False}, "[]", "['3.weight', '3.bias']"),
    "posterior.link": ({"link": double}, "spikeslab.posterior.prediction.probabilities", f"{__name__}.double"),
}
"""Settings that only the user can give back: the code and the data."""


@pytest.mark.parametrize("name", [*CHANGES, *CODE])
def test_a_change_is_refused_with_a_table_and_changes_nothing(begun: Path, name: str) -> None:
    change, old, new = (CHANGES | CODE)[name]
    before = files(begun)
    with pytest.raises(ChangedSettingsError) as caught:
        resume(begun, **change)
    lines = [line.split(" | ") for line in str(caught.value).splitlines()]
    rows_of_table = [[cell.strip() for cell in line] for line in lines if len(line) == 3]
    assert [row[0] for row in rows_of_table] == ["name", name], caught.value
    assert rows_of_table[1][1].startswith("none" if old is None else str(old))
    assert rows_of_table[1][2].startswith(str(new))
    assert rows_of_table[1][1] != rows_of_table[1][2]
    assert f"on_change={{'{name}': 'new'}}" in str(caught.value)
    assert files(begun) == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    resume(folder)
    return read_end(folder)


def read_end(folder: Path) -> dict[str, Any]:
    return Checkpoints(folder / "checkpoints").load(STEPS).state


@pytest.mark.parametrize("name", CHANGES)
def test_old_continues_as_if_nothing_had_changed(begun: Path, whole: dict[str, Any], name: str) -> None:
    run = resume(begun, on_change={name: "old"}, **CHANGES[name][0])
    end = read_end(begun)
    assert all(torch.equal(end["model"][key], tensor) for key, tensor in whole["model"].items())
    assert [record["step"] for record in end["callbacks"]["posterior"]["records"]] == [5, 8, 11]
    assert end["settings"] == whole["settings"] == run.settings_dict()
    resume(begun)  # as it was at first


@pytest.mark.parametrize("name", CHANGES)
def test_new_goes_on_with_the_value_of_the_code(begun: Path, whole: dict[str, Any], name: str) -> None:
    change = CHANGES[name][0]
    run = resume(begun, on_change={name.split(".")[0]: "new"}, **change)
    end = read_end(begun)
    assert end["settings"][name] == make(**change).settings_dict()[name] != whole["settings"][name]
    moved = any(not torch.equal(end["model"][key], tensor) for key, tensor in whole["model"].items())
    steps = [record["step"] for record in end["callbacks"]["posterior"]["records"]]
    assert moved or steps != [5, 8, 11] or name in ("pruner.every", "pruner.scope", "pruner.floor"), (
        "the change has no effect"
    )
    group = run.sampler.param_groups[0]
    now = group | {"seed": run.sampler.noise.seed} | vars(run.callbacks[0].pruner) | vars(run.callbacks[1].posterior)
    attribute = name.split(".")[-1]
    if name.startswith(("sampler.", "posterior.")):
        assert now[attribute] == change[attribute]
    resume(begun, **change)  # now these are the settings of the run


@pytest.mark.parametrize("name", CODE)
def test_code_and_data_of_old_are_not_to_be_had(begun: Path, name: str) -> None:
    before = files(begun)
    with pytest.raises(ValueError, match=r"(?s)^Cannot resume: "):
        resume(begun, on_change="old", **CODE[name][0])
    assert files(begun) == before
    resume(begun, on_change="new", **CODE[name][0])


def test_all_changes_stand_in_one_table_and_one_word_takes_them(begun: Path, whole: dict[str, Any]) -> None:
    both = {"lr": 0.02, "v0": 0.02}
    with pytest.raises(ChangedSettingsError, match=r"(?s)sampler\.lr +\| 0\.05.*prior\.v0 +\| 0\.01"):
        resume(begun, **both)
    with pytest.raises(ChangedSettingsError, match=r"prior\.v0") as caught:
        resume(begun, on_change={"sampler": "old"}, **both)
    assert "sampler.lr" not in str(caught.value)
    resume(begun, on_change="old", **both)
    assert all(torch.equal(read_end(begun)["model"][key], tensor) for key, tensor in whole["model"].items())


def test_schedules_come_back_from_their_names(tmp_path: Path) -> None:
    cosine = {"lr": ss.cosine(0.05, total=STEPS), "temperature": ss.schedules.geometric(0.1, 0.9)}
    resume(tmp_path / "whole", **cosine)
    resume(tmp_path / "cut", steps=6, **cosine)
    with pytest.raises(
        ChangedSettingsError, match=r"sampler\.lr +\| cosine\(initial=0\.05, total=12,.* \| cosine\(initial=0\.5"
    ):
        resume(tmp_path / "cut", lr=ss.cosine(0.5, total=STEPS), temperature=0.3)
    resume(tmp_path / "cut", on_change="old", lr=ss.cosine(0.5, total=STEPS), temperature=0.3)
    whole, cut = read_end(tmp_path / "whole"), read_end(tmp_path / "cut")
    assert all(torch.equal(cut["model"][key], tensor) for key, tensor in whole["model"].items())


def test_a_schedule_of_ones_own_is_known_by_its_name_and_values(tmp_path: Path) -> None:
    resume(tmp_path, steps=6, lr=lambda step: 0.05 / step)
    resume(tmp_path, steps=8, lr=lambda step: 0.05 / step)
    for call, error, message in (
        (
            lambda: resume(tmp_path, lr=lambda step: 0.06 / step),
            ChangedSettingsError,
            r"05, 0\.0005, 5e-05, .* \| .*06, 0\.0006, 6e-05, ",
        ),
        (
            lambda: resume(tmp_path, on_change="old", lr=lambda step: 0.06 / step),
            ValueError,
            r"^Cannot resume: .* schedule must be a call of one of the package's own",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
    resume(tmp_path, on_change="new", lr=lambda step: 0.06 / step)


def test_a_seed_that_was_not_given_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    first = resume(tmp_path, steps=6, seed=None)
    second = resume(tmp_path, steps=8, seed=None, global_seed=9)
    assert second.sampler.noise.seed == first.sampler.noise.seed
    with pytest.raises(ChangedSettingsError, match=r"sampler\.seed +\| \d+ +\| 6"):
        resume(tmp_path, seed=6)


def schedule(sampler: torch.optim.Optimizer, total: int = 20, gamma: float = 0.9) -> list[ScheduleLR]:
    warmup = torch.optim.lr_scheduler.LinearLR(sampler, total_iters=3)
    after = torch.optim.lr_scheduler.StepLR(sampler, total, gamma)
    return [ScheduleLR(torch.optim.lr_scheduler.SequentialLR(sampler, [warmup, after], [3]))]


def test_settings_of_torch_schedulers_and_optimizers_count_too(tmp_path: Path) -> None:
    def run(on_change: Any = "error", steps: int = STEPS, lr: float = 0.1, gamma: float = 0.9) -> Training:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        adam = torch.optim.Adam(model.parameters(), lr=lr)
        training = Training(model, adam, TensorBatches(*rows(), batch_size=8), callbacks=schedule(adam, 2, gamma))
        training.run(steps=steps, folder=RunFolder(tmp_path, resume=True, on_change=on_change))
        return training

    run(steps=6)
    run(steps=7)
    for change, message in (
        ({"gamma": 0.5}, r"scheduler\.1\.gamma +\| 0\.9 +\| 0\.5"),
        ({"lr": 0.2}, r"sampler\.lr +\| 0\.1 +\| 0\.2"),
    ):
        with pytest.raises(ChangedSettingsError, match=message):
            run(**change)
    at_seven = run(steps=7).sampler.param_groups[0]["lr"]
    doubled = run(steps=7, on_change={"sampler.lr": "new"}, lr=0.2)
    assert doubled.sampler.param_groups[0]["lr"] == pytest.approx(2 * at_seven)
    assert doubled.callbacks[0].scheduler._schedulers[1].base_lrs == [0.2]
    assert run(on_change={"scheduler": "new"}, lr=0.2, gamma=0.5).callbacks[0].scheduler._schedulers[1].gamma == 0.5


def test_the_data_of_a_loader_count_too(tmp_path: Path) -> None:
    class Listed(torch.utils.data.Dataset):
        """Items that torch cannot see through."""

        def __init__(self, seed: int) -> None:
            self.rows = rows(seed)

        def __len__(self) -> int:
            return len(self.rows[0])

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            return self.rows[0][index] + 0.1 * torch.randn(4), self.rows[1][index]  # an augmentation

    for place, dataset in (("tensors", lambda seed: TensorDataset(*rows(seed))), ("items", Listed)):
        folder = tmp_path / place
        resume(folder, steps=6, batches=DataLoader(dataset(0), 8))
        resume(folder, steps=8, batches=DataLoader(dataset(0), 8))
        for loader, message in (
            (DataLoader(dataset(1), 8), r"data\.sha256"),
            (DataLoader(dataset(0), 4), r"(?s)data\.batches +\| 4 +\| 8.*data\.batch_size +\| 8 +\| 4"),
            (DataLoader(dataset(0), 8, shuffle=True), r"data\.sampler +\| SequentialSampler +\| RandomSampler"),
        ):
            with pytest.raises(ChangedSettingsError, match=message):
                resume(folder, batches=loader)
        resume(folder, on_change={"data": "new"}, batches=DataLoader(dataset(1), 4))


def test_items_that_differ_when_read_twice_do_not_count() -> None:
    class Restless(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.generator = torch.Generator()
            self.generator.seed()

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.rand(2, generator=self.generator)

    run, known = make(batches=DataLoader(Restless())), make(batches=DataLoader([1, 2, 3]))
    state = torch.get_rng_state()
    assert run.settings_dict()["data.sha256"] is None
    assert known.settings_dict()["data.sha256"] is not None
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn from the run's generators"


def test_large_data_are_known_by_some_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spikeslab.training.batches.HASHED_BYTES", 200)
    x, y = rows()
    digests = [make(batches=TensorBatches(x, y, batch_size=8)).settings_dict()["data.sha256"]]
    for row in (1, 4):
        x[row] += 1.0
        digests.append(make(batches=TensorBatches(x, y, batch_size=8)).settings_dict()["data.sha256"])
    assert digests[0].endswith(" (rows 0, 4, 8, ...)")
    assert digests[0] == digests[1] != digests[2]


def test_other_data_begin_the_epoch_anew(begun: Path) -> None:
    run = resume(begun, on_change={"data": "new"}, steps=7, rows=1, data_batch_size=4)
    assert (run.epoch, run.order.position) == (1, 1)  # steps 5 and 6 were in the second epoch of the old data


def test_a_checkpoint_without_settings_resumes_with_a_warning(begun: Path, whole: dict[str, Any]) -> None:
    checkpoints = Checkpoints(begun / "checkpoints")
    state = checkpoints.load(6).state
    del state["settings"]
    checkpoints.save(6, state)
    with pytest.warns(SpikeSlabWarning, match=r"^The checkpoint holds no settings, as those of earlier versions"):
        resume(begun)
    assert all(torch.equal(read_end(begun)["model"][key], tensor) for key, tensor in whole["model"].items())


def test_a_mask_cannot_freeze_in_the_past(begun: Path) -> None:
    before = files(begun)
    with pytest.raises(ValueError, match=r"freeze_at must be later than the step of the checkpoint, 6, but got 4"):
        resume(begun, on_change="new", freeze_at=4)
    assert files(begun) == before


def test_a_failed_resume_gives_all_objects_back_their_settings(begun: Path) -> None:
    state = Checkpoints(begun / "checkpoints").load(6).state
    cosine = ss.cosine(0.1, total=9)
    run = make(lr=cosine, v0=0.02, sparsity=0.3, thin=2, precision="bfloat16", data_seed=2, freeze_at=4)
    parts = run.sampler, run.sampler.prior, run.callbacks[0], run.callbacks[1], run.order
    before = [part.settings_dict() for part in parts]
    words = dict.fromkeys(("sampler", "prior", "pruner", "posterior", "data", "precision"), "old")
    with pytest.raises(ValueError, match="freeze_at must be later"):
        run.load_state_dict(state, words | {"pruner.freeze_at": "new"})
    assert [part.settings_dict() for part in parts] == before
    assert run.precision == "bfloat16"
    run.run(steps=2)
    assert run.sampler.param_groups[0]["lr"] == cosine(2)


def test_words_and_names_are_checked(begun: Path) -> None:
    for odd in ("newest", {"sampler.lr": "newest"}):
        with pytest.raises(ValueError, match=r"^on_change must be one of 'error', 'old', 'new', but got 'newest'\.$"):
            check_on_change(odd)
    with pytest.raises(ValueError, match=r"^on_change must name settings of the run, .* but got 'sampler\.l'\.$"):
        resume(begun, on_change={"sampler.l": "new", "sampler": "old", "data": "new"})


def test_the_settings_of_the_folder_can_be_taken_anew(tmp_path: Path) -> None:
    make().run(steps=2, folder=RunFolder(tmp_path, settings={"note": 1}))
    with pytest.raises(ValueError, match=r"other settings: note was 1 and is now 2"):
        make().run(steps=4, folder=RunFolder(tmp_path, resume=True, settings={"note": 2}, on_change="old"))
    make().run(steps=4, folder=RunFolder(tmp_path, resume=True, settings={"note": 2}, on_change={"note": "new"}))


def test_names_of_one_side_alone_are_no_change_but_modules_are() -> None:
    assert find_changes({"a": 1, "gone": 1}, {"a": 1, "come": 2}, "error") == ({}, {})
    with pytest.raises(ChangedSettingsError, match=r"model\.3 +\| none +\| ReLU\(\)"):
        find_changes({}, {"model.3": "ReLU()"}, "error")
