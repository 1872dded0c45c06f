"""``spikeslab init`` and ``spikeslab compress`` as a user sees them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes import RECIPE, read_files
from safetensors.torch import load_file, save_file

from spikeslab.cli.app import run
from spikeslab.cli.compress import check_new_run


def test_the_template_runs_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["init", "mine.py"]) == 0
    assert capsys.readouterr().out == (
        "Files written:\n  mine.py\nNext:\n  spikeslab compress mine.py --out out/mine\n"
    )
    text = (tmp_path / "mine.py").read_text()
    assert "spikeslab compress mine.py --sparsity 0.9" in text
    # The network of the template, trained and compressed for one epoch only.
    (tmp_path / "mine.py").write_text(text.replace("range(15)", "range(1)"))
    assert run(["compress", "mine.py", "--epochs", "1", "--sparsity", "0.5"]) == 0
    out = capsys.readouterr().out
    for word in ("dense", "sparse", "average", "val acc. %", "test NLL", "50.00% of the whole network is zero"):
        assert word in " ".join(out.split())
    assert out.endswith("Next:\n  spikeslab sparsity out/mine --recipe mine.py\n  spikeslab doctor out/mine\n")
    folder = tmp_path / "out" / "mine"
    for name in (
        "model.safetensors",
        "sparse.safetensors",
        "report.json",
        "recipe.py",
        "report.html",
        "result.md",
        "run.json",
    ):
        assert (folder / name).is_file(), name
    assert (folder / "recipe.py").read_bytes() == (tmp_path / "mine.py").read_bytes()
    zeros = sum(int((tensor == 0).sum()) for tensor in load_file(folder / "model.safetensors").values())
    assert zeros == round(0.5 * 53_002)
    record = json.loads((folder / "result.json").read_text())
    rows = {row["model"]: row for row in record["rows"]}
    assert list(rows) == ["dense", "sparse", "sparse, fp16", "sparse, int8", "average"]
    counts = [row["nonzeros"] for row in record["rows"]]
    assert counts[:2] == [53_002, 53_002 - zeros]
    assert 53_002 - zeros >= counts[2] >= counts[3] > 0.9 * (53_002 - zeros), "rounding may make a few more zeros"
    assert rows["sparse"]["kilobytes"] == (folder / "sparse.safetensors").stat().st_size / 1000
    assert rows["dense"]["kilobytes"] > rows["sparse"]["kilobytes"] > rows["sparse, int8"]["kilobytes"]
    assert rows["sparse, int8"]["test_nll"] == pytest.approx(rows["sparse"]["test_nll"], rel=0.1)
    assert rows["sparse, int8"]["test_nll"] != rows["sparse"]["test_nll"]
    assert (
        record["run"]["command"] == "spikeslab compress mine.py --sparsity 0.5 --epochs 1 --method a-sghmc-sa --seed 0"
    )


def test_a_path_with_spaces_can_be_copied_from_the_advice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["init", "my dir/my recipe.py"]) == 0
    assert capsys.readouterr().out.endswith("spikeslab compress 'my dir/my recipe.py' --out 'out/my recipe'\n")
    assert "spikeslab compress 'my dir/my recipe.py' --sparsity 0.9" in Path("my dir/my recipe.py").read_text()


def test_a_network_that_cannot_be_traced_gets_advice_that_the_command_line_can_follow(folder, capsys):
    text = "class Own(nn.Sequential):\n    def forward(self, x): return super().forward(x if x.sum() > 0 else -x)\n"
    (folder / "recipe.py").write_text(RECIPE + text + "build = model\ndef model(): return Own(*build())\n")
    assert run(["compress", "recipe.py", "--out", "run", "--structure", "channels"]) == 2
    assert capsys.readouterr().err == (
        "Error: model() must be one that torch.fx can trace, but tracing stopped with 'symbolically traced variables "
        "cannot be used as inputs to control flow': name its layers in Python, as in {'conv1.weight': 'bn1'}.\n"
    )


def test_init_overwrites_nothing(folder, capsys):
    assert run(["init", "recipe.py"]) == 2
    assert capsys.readouterr().err == "Error: RECIPE must be a new file, but recipe.py exists.\n"
    assert (folder / "recipe.py").read_text() == RECIPE


def test_options_reach_the_run(folder, capsys):
    options = ["--method", "l2", "--epochs", "2", "--sparsity", "0.25", "--count", "layers", "--weights", "[02].weight"]
    options += ["--lr", "0.02", "--temperature", "0.5", "--samples", "2", "--seed", "7", "--num-data", "99"]
    options += ["--threads", str(torch.get_num_threads())]
    options += ["--set", "softening=2", "--set", "drops=0.5:0.8"]
    assert run(["compress", "recipe.py", "--out", "run", *options, "--no-report"]) == 0
    report = json.loads((folder / "run" / "report.json").read_text())
    assert (report["method"], report["epochs"], report["seed"], report["samples"]) == ("l2", 2, 7, 2)
    assert report["weights"] == ["0.weight", "2.weight"]
    assert report["sparse_layers"] == {"weights": 320, "nonzeros": 240, "sparsity": 0.25}
    assert (report["settings"]["lr"], report["settings"]["temperature"]) == (0.02, 0.5)
    assert (report["settings"]["softening"], report["settings"]["drops"]) == (2, [0.5, 0.8])
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["num_data"] == 99
    assert record["command"].startswith("spikeslab compress recipe.py --sparsity 0.25 --epochs 2 --method l2 --seed 7")
    assert record["command"].endswith("--weights '[02].weight' --set softening=2 --set drops=0.5:0.8")
    assert "Compressing: 8 of 8 steps" in capsys.readouterr().err


ATTENTION = """
class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.places = nn.Parameter(torch.zeros(1, 20, 8))
        self.attention = nn.MultiheadAttention(8, 2)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        h = self.first(x) + self.places[0, 0]
        return self.last(self.attention(h, h, h)[0])

def model():
    return Attending()
"""


def test_a_warning_of_the_library_is_a_sentence_with_the_name_of_the_option(folder, capsys):
    (folder / "recipe.py").write_text(RECIPE + ATTENTION)
    options = ["--epochs", "1", "--sparsity", "0.1", "--samples", "1"]
    assert run(["compress", "recipe.py", "--out", "run", *options, "--no-report"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "arning" in line] == [
        "Warning: 'places' stays dense, 32% of the parameters: by default only matrices of layers are pruned, and none "
        "of embeddings. --weights can name others."
    ]


def test_channels_on_the_command_line(folder, capsys):
    options = ["--structure", "channels", "--epochs", "4", "--sparsity", "0.5", "--scope", "erk", "--floor", "2"]
    assert run(["compress", "recipe.py", "--out", "run", *options, "--no-report"]) == 0
    captured = capsys.readouterr()
    assert "dead channels 50.0%" in captured.err
    assert "sparsity" not in captured.err
    out = " ".join(captured.out.split())
    assert "16 of 32 channels of 2 layers are gone." in out
    report = json.loads((folder / "run" / "report.json").read_text())
    assert (report["structure"], report["count"]) == ("channels", "channels")
    assert (report["settings"]["scope"], report["settings"]["floor"]) == ("erk", 2)
    compacted = report["compacted"]["parameters"]
    assert f"the network has {compacted['after']} parameters instead of {compacted['before']}" in out
    assert "--structure channels" in json.loads((folder / "run" / "result.json").read_text())["run"]["command"]
    assert run(["sparsity", "run", "--no-latency"]) == 0


def test_settings_and_loss_of_the_recipe(folder, capsys):
    more = "from spikeslab.compression import Settings\nsettings = Settings(momentum=0.5, cooling=2.0)\n"
    more += "def loss(model, batch):\n    return nn.functional.cross_entropy(model(batch[0]), batch[1])\n"
    (folder / "recipe.py").write_text(RECIPE + more)
    options = ["--epochs", "1", "--sparsity", "0.5", "--lr", "0.01", "--set", "cooling=3"]
    assert run(["compress", "recipe.py", "--out", "run", *options, "--no-report"]) == 0
    settings = json.loads((folder / "run" / "report.json").read_text())["settings"]
    assert (settings["momentum"], settings["lr"], settings["cooling"]) == (0.5, 0.01, 3)
    assert "val loss" in " ".join(capsys.readouterr().out.split())


def test_a_run_is_continued_and_never_begun_twice(folder, capsys):
    arguments = ["compress", "recipe.py", "--epochs", "4", "--sparsity", "0.5", "--lr", "0.05", "--no-report", "--out"]
    assert run([*arguments, "whole"]) == 0
    stop = RECIPE + (
        "import os, pathlib, signal\n"
        "def loss(model, batch):\n"
        "    mark = pathlib.Path('steps')\n"
        "    mark.write_text(mark.read_text() + '.' if mark.exists() else '.')\n"
        "    if len(mark.read_text()) == 11:\n"
        f"        os.kill(os.getpid(), {int(signal.SIGTERM)})\n"
        "    return nn.functional.cross_entropy(model(batch[0]), batch[1])\n"
    )
    (folder / "recipe.py").write_text(stop)
    assert run([*arguments, "stopped"]) == 128 + signal.SIGTERM
    captured = capsys.readouterr()
    # Eleven losses: two to try, the dense network on the validation data, four steps, the validation data, three steps.
    message = "Stopped after step 7 of 16. The state is saved in stopped: continue with --resume.\n"
    assert captured.err.endswith(message)
    before = read_files(folder / "stopped")
    assert run([*arguments, "stopped"]) == 2
    assert capsys.readouterr().err == (
        "Error: --out must not hold a run yet, but stopped does: continue it with --resume, or choose another.\n"
    )
    assert read_files(folder / "stopped") == before
    assert run([*arguments, "stopped", "--resume", "--seed", "1"]) == 2
    assert "seed was 0 and is now 1" in capsys.readouterr().err
    assert run([*arguments, "stopped", "--resume", "--sparsity", "0.25"]) == 2
    assert "--sparsity was 0.5 and is now 0.25" in capsys.readouterr().err
    assert run([*arguments, "stopped", "--resume"]) == 0
    whole, stopped = (load_file(folder / name / "model.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)
    (folder / "recipe.py").write_text(stop + "# changed\n")
    assert run([*arguments, "stopped", "--resume"]) == 2
    assert "Cannot resume: stopped was begun with other settings: RECIPE was" in capsys.readouterr().err
    assert run([*arguments, "stopped", "--resume", "--on-change", "old"]) == 2, "the old recipe is not to be had"
    assert run([*arguments, "stopped", "--resume", "--on-change", "newer"]) == 2
    assert "--on-change must be one of 'error', 'old', 'new', but got 'newer'." in capsys.readouterr().err
    assert run([*arguments, "stopped", "--resume", "--on-change", "new"]) == 0


def test_weights_of_the_dense_network_from_a_file(folder, capsys):
    namespace: dict = {}
    exec(RECIPE, namespace)
    state = namespace["model"]().state_dict()
    save_file({name: 2.0 * tensor for name, tensor in state.items()}, folder / "dense.safetensors")
    options = ["--epochs", "1", "--sparsity", "0.5", "--method", "magnitude", "--lr", "1e-12", "--weights", "2.weight"]
    assert run(["compress", "recipe.py", "--out", "run", "--dense", "dense.safetensors", *options, "--no-report"]) == 0
    weight = load_file(folder / "run" / "model.safetensors")["0.weight"]
    torch.testing.assert_close(weight, 2.0 * state["0.weight"])
    capsys.readouterr()
    state["head.weight"] = state.pop("4.weight")
    state["0.bias"] = torch.zeros(3)
    save_file(state, folder / "other.safetensors")
    assert run(["compress", "recipe.py", "--out", "other", "--dense", "other.safetensors"]) == 2
    assert capsys.readouterr().err == (
        "Error: The model does not have the tensors of --dense other.safetensors: they differ in '4.weight', "
        "'head.weight'.\n"
    )
    assert not (folder / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sparsity", "1.5"], "--sparsity must be a number in (0, 1), but got 1.5."),
        (["--sparsity", "0.95"], "--sparsity must be at most 0.904145, since 3 layers must keep 3 weights in all, but "
         "got 0.95, which is 367 zeros of 386: with --count layers it is a share of the weights to prune."),
        (["--floor", "0.9"], "--sparsity must be at most 0.0880829, since 3 layers must keep 318 weights in all, but "
         "got 0.5, which is 193 zeros of 386."),
        (["--set", "lr=0.1"], "--set must not be used for lr, which has an option of its own: --lr."),
        (["--floor", "1.5"], "--floor must be an integer >= 1 or a number in (0, 1), but got 1.5."),
        (["--scope", "row"], "--scope must be one of 'layer', 'global', 'erk', but got 'row'."),
        (["--structure", "channels", "--count", "layers"], "--count must not go with --structure channels: "
         "--sparsity is the share of channels, but got 'layers'."),
        (["--structure", "rows"], "--structure must be one of 'weights', 'channels', but got 'rows'."),
        (["--structure", "channels", "--method", "dpf"], "--method must be one that prunes channels with "
         "--structure channels, but got 'dpf'."),
        (["--structure", "channels", "--weights", "4.weight"], "--weights must name layers with free channels, "
         "'0.weight', '2.weight', but got '4.weight'."),
        (["--structure", "channels", "--sparsity", "0.99"], "--sparsity must be at most 0.9375, since 2 layers must "
         "keep 2 channels in all, but got 0.99, which is 32 zeros of 32."),
        (["--epochs", "0"], "--epochs must be an integer >= 1, but got 0."),
        (["--seed", "-1"], "--seed must be an integer >= 0, but got -1."),
        (["--lr", "-1"], "--lr must be a number > 0, but got -1.0."),
        (["--samples", "0"], "--samples must be an integer >= 1, but got 0."),
        (["--set", "momentum=1"], "--set momentum must be a number in [0, 1), but got 1."),
        (["--set", "omega_sum=1,2"], "--set must give omega_sum one value, but got 2."),
        (["--threads", "0"], "--threads must be an integer >= 1, but got 0."),
        (["--num-data", "0"], "--num-data must be an integer >= 1, but got 0."),
        (["--method", "magic"], "--method must be one of 'a-sghmc-sa', 'sghmc-sa', 'a-sghmc-em', 'a-sghmc', "
         "'marginal', 'prior-annealing', 'gmp', 'l1', 'l2', 'dpf', 'magnitude', but got 'magic'."),
        (["--weights", "conv*"], "--weights must each match a parameter, but 'conv*' matched none of "
         "'0.weight', '0.bias', '2.weight', '2.bias', '4.weight', '4.bias'."),
        (["--count", "all"], "--count must be one of 'network', 'layers', but got 'all'."),
        (["--out", "recipe.py"], "--out must be a folder, but recipe.py is a file."),
        (["--out", "full"], "--out must be a new or an empty folder, but full holds something."),
    ],
)  # fmt: skip
def test_bad_options_are_one_sentence_and_leave_no_trace(arguments, message, folder, capsys):
    (folder / "full").mkdir()
    (folder / "full" / "mine").write_text("mine")
    before = read_files(folder)
    assert run(["compress", "recipe.py", "--out", "run", "--sparsity", "0.5", *arguments]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert read_files(folder) == before


@pytest.mark.parametrize(
    "arguments",
    ["--sparsity 1.5", "--structure rows", "--structure channels --method dpf", "--count all", "--epochs 0",
     "--num-data 0", "--seed -1", "--method magic", "--scope row", "--threads 0", "--dense none.safetensors"],
)  # fmt: skip
def test_options_are_checked_before_the_recipe_runs(arguments, folder, capsys):
    (folder / "recipe.py").write_text("raise RuntimeError('it ran')")
    assert run(["compress", "recipe.py", "--out", "run", *arguments.split()]) == 2
    option, value = arguments.split()[-2:]
    message = capsys.readouterr().err
    assert message.startswith(f"Error: {option} must be ")
    assert value in message


def test_a_loss_that_is_not_finite_is_one_sentence(folder, capsys):
    (folder / "recipe.py").write_text(RECIPE + "def loss(model, batch): return model(batch[0]).sum() * float('nan')\n")
    assert run(["compress", "recipe.py", "--out", "run", "--sparsity", "0.5"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "Error: The loss must be finite, but got nan at step 1: all weights and all outputs are finite, so check the "
        "loss and the targets."
    )


def test_a_later_batch_of_another_form_is_one_sentence(folder, capsys):
    (folder / "recipe.py").write_text(RECIPE + "def train_data(): return [rows(1), torch.ones(2, 4)]\n")
    assert run(["compress", "recipe.py", "--out", "run", "--sparsity", "0.5", "--num-data", "66"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "Error: train_data() must yield batches that the model and the loss take, but got a single tensor of shape "
        "(2, 4): it must be a pair (x, y) or a mapping with 'labels'."
    )


def test_the_help_says_where_defaults_come_from(capsys):
    assert run(["compress", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert text.count("[default: (the recipe's, or ") == 5


def test_resuming_where_there_is_nothing_says_so(tmp_path: Path, capsys: Any) -> None:
    check_new_run(tmp_path / "typo", resume=True)
    assert capsys.readouterr().err == f"There is no run in {tmp_path / 'typo'} yet: a new one begins.\n"
    check_new_run(tmp_path, resume=True)
    assert capsys.readouterr().err == ""


def test_a_recipe_without_a_seed_gives_the_same_network_to_a_resumed_run(tmp_path, capsys):
    recipe = tmp_path / "mine.py"
    recipe.write_text(RECIPE.replace("    torch.manual_seed(0)\n", ""))
    words = ["compress", recipe, "--epochs", 2, "--sparsity", 0.5, "--no-report", "--out", tmp_path / "out"]
    torch.seed()
    assert run(list(map(str, words))) == 0
    first = (tmp_path / "out" / "result.md").read_text()
    torch.seed()
    assert run([*map(str, words), "--resume"]) == 0, capsys.readouterr().err
    assert (tmp_path / "out" / "result.md").read_text() == first


def test_a_sparsity_that_the_run_finds_is_stated_with_its_interval(folder, capsys):
    options = ["--sparsity", "auto", "--tolerance", "3", "--epochs", "4", "--samples", "2", "--no-report"]
    assert run(["compress", "recipe.py", "--out", "run", *options]) == 0
    out = " ".join(capsys.readouterr().out.split())
    report = json.loads((folder / "run" / "report.json").read_text())
    found = report["search"]["sparse"]
    low, high = found["interval"]
    assert (
        f"The run chose the sparsity. The sparse network is worse than the dense one on val_data() by "
        f"{found['difference']:.2f} ± {found['standard_error']:.2f} points of accuracy (paired over 64 rows, 95 % "
        f"interval {low:.2f} to {high:.2f}), {'within' if report['search']['within'] else 'beyond'} the tolerance of 3."
    ) in out
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["command"].startswith(
        "spikeslab compress recipe.py --sparsity auto --epochs 4 --method a-sghmc-sa --seed 0 --tolerance 3.0"
    )
    log = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert log[-1]["search"] == report["search"]["probes"][-1]
    assert run(["doctor", "run"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sparsity", "most"], "--sparsity must be a number in (0, 1) or 'auto', but got most."),
        (["--sparsity", "1"], "--sparsity must be a number in (0, 1), but got 1.0."),
        (["--sparsity", "auto", "--tolerance", "-1"], "--tolerance must be a number >= 0, but got -1.0."),
        (
            ["--sparsity", "auto", "--method", "magnitude"],
            "--method must be one that prunes gradually with --sparsity auto, but got 'magnitude'.",
        ),
    ],
)
def test_a_sparsity_that_is_no_share_is_one_sentence(options, message, folder, capsys):
    assert run(["compress", "recipe.py", "--out", "run", *options]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert not (folder / "run").exists()
