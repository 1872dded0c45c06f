"""Recipes with mistakes, as a user of ``spikeslab compress`` sees them."""

from __future__ import annotations

import sys

import pytest
from recipes import RECIPE, read_files

from spikeslab.cli.app import run

LAST = RECIPE.count("\n") + 1


BAD_RECIPES = {
    "x = 1": "RECIPE must define model(), train_data() and val_data(), but recipe.py lacks model(), train_data() "
    "and val_data().",
    RECIPE + "del val_data": "RECIPE must define model(), train_data() and val_data(), but recipe.py lacks val_data().",
    RECIPE + "val_data = 3": "'val_data' in recipe.py must be a function, but got something else.",
    RECIPE + "def model(): pass": "model() in recipe.py must return a torch.nn.Module, but got None.",
    RECIPE + "def model(): return {}": "model() in recipe.py must return a torch.nn.Module, but got an object of type "
    "dict.",
    RECIPE + "def train_data(): return torch.ones(3)": "train_data() in recipe.py must return a loader or a list of "
    "batches that can be run through again, but got an object of type Tensor.",
    RECIPE + "def val_data(): return iter([1])": "val_data() in recipe.py must return a loader or a list of batches "
    "that can be run through again, but got an object of type list_iterator.",
    RECIPE + "def train_data(): return [torch.ones(3, 4)]": "train_data() must yield pairs (x, y) or mappings with "
    "'labels' where no loss() is given, but got a single tensor of shape (3, 4).",
    RECIPE + "def model(size): pass": "model() in recipe.py must run without an error, but recipe.py raised "
    "TypeError: model() missing 1 required positional argument: 'size'.",
    RECIPE + "def model(): return {}['key']": "model() in recipe.py must run without an error, but "
    f"line {LAST} of recipe.py raised KeyError: 'key'.",
    RECIPE
    + "def model(): net = nn.Linear(2, 2, False); net.load_state_dict({'module.weight': 1}); return net": "model() "
    f"in recipe.py must run without an error, but line {LAST} of recipe.py raised RuntimeError: Error(s) in loading "
    'state_dict for Linear: Missing key(s) in state_dict: "weight". Unexpected key(s) in state_dict: "module.weight".',
    RECIPE + "import no_such_module": "RECIPE must be a Python file that runs, but "
    f"line {LAST} of recipe.py raised "
    "ModuleNotFoundError: No module named 'no_such_module'.",
    RECIPE + "import sys; sys.exit('no data')": "RECIPE must be a Python file that runs, but "
    f"line {LAST} of recipe.py raised SystemExit: no data.",
    RECIPE + "def train_data(): raise SystemExit(0)": "train_data() in recipe.py must run without an error, but "
    f"line {LAST} of recipe.py raised SystemExit: 0.",
    "def model(:": "RECIPE must be a Python file that runs, but line 1 of recipe.py raised SyntaxError: invalid "
    "syntax.",
    RECIPE + "settings = {}": "settings in recipe.py must be spikeslab.compression.Settings(...), but got an object of "
    "type dict.",
    RECIPE + "def val_data(): return [torch.ones(2, 4)]": "val_data() must yield batches that the model and the loss "
    "take, but got a single tensor of shape (2, 4): it must be a pair (x, y) or a mapping with 'labels'.",
    RECIPE + "def test_data(): return [torch.ones(2, 4)]": "test_data() must yield batches that the model and the loss "
    "take, but got a single tensor of shape (2, 4): it must be a pair (x, y) or a mapping with 'labels'.",
    RECIPE + "def test_data(): return []": "test_data() must hold at least one batch, but got none.",
    RECIPE
    + "def loss(model, batch): return 0.5": "loss() must return the mean loss of a batch, a tensor of one number, "
    "but got a float.",
    RECIPE + "def loss(model, batch): return model(batch[0])[:, 0]": "loss() must return the mean loss of a batch, a "
    "tensor of one number, but got a single tensor of shape (16,).",
    RECIPE + "def loss(model, batch): return batch['x']": "train_data() must yield batches that the model and the loss "
    f"take, but got a pair of shapes (16, 4) and (16,): line {LAST} of recipe.py raised TypeError: tuple indices must "
    "be integers or slices, not str.",
    RECIPE
    + "def train_data(): return [(torch.ones(3, 4), torch.tensor([0, 1, 2]))]": "train_data() must yield batches "
    "that the model and the loss take, but got a pair of shapes (3, 4) and (3,): IndexError: Target 2 is out of "
    "bounds.",
    RECIPE + "def train_data(): return [(torch.ones(3, 5), torch.zeros(3).long())]": "train_data() must yield batches "
    "that the model and the loss take, but got a pair of shapes (3, 5) and (3,): RuntimeError: mat1 and mat2 shapes "
    "cannot be multiplied (3x5 and 4x16).",
    RECIPE + "def train_data(): return [(torch.ones(3, 4), torch.ones(3, 5))]": "train_data() must yield batches that "
    "the model and the loss take, but got a pair of shapes (3, 4) and (3, 5): targets must have the shape of the "
    "outputs, (3, 2).",
    RECIPE + "class Rows(list):\n    def __iter__(self): yield 1 / 0\n"
    "def train_data(): return Rows()": "RECIPE must be a Python file that runs, but "
    f"line {LAST + 1} of recipe.py raised ZeroDivisionError: division by zero.",
    RECIPE + "def model(): return nn.Flatten()": "model() must have a trained Conv or Linear layer, but got none at "
    "all: --weights can name others.",
}


NEIGHBOUR = """
import torch
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, index):
        if index == 31: {fault}
        return torch.ones(4), 0
"""


LOADER = (
    "import neighbour\ndef train_data(): return torch.utils.data.DataLoader(neighbour.Rows(), 16, num_workers={})\n"
)


@pytest.mark.parametrize(
    ("fault", "workers", "sentence"),
    [
        ("raise RuntimeError('broken row')", 0, "line 6 of {neighbour} raised RuntimeError: broken row."),
        ("open('no-such-image')", 0, "line 6 of {neighbour} raised FileNotFoundError: [Errno 2] No such file or "
         "directory: 'no-such-image'."),
        ("raise RuntimeError('broken row')", 1, "recipe.py raised RuntimeError: broken row."),
    ],
)  # fmt: skip
def test_data_that_fails_in_a_module_of_the_users_is_not_blamed_on_the_folder(
    fault, workers, sentence, folder, capsys, monkeypatch
):
    neighbour = folder / "neighbour.py"
    neighbour.write_text(NEIGHBOUR.format(fault=fault))
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    monkeypatch.syspath_prepend(folder)
    (folder / "recipe.py").write_text(RECIPE + LOADER.format(workers))
    assert run(["compress", "recipe.py", "--out", "run", "--sparsity", "0.5", "--epochs", "1"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error.endswith(f"Error: RECIPE must be a Python file that runs, but {sentence.format(neighbour=neighbour)}")


def test_a_mistake_in_a_module_beside_the_recipe_is_named_with_its_file(folder, capsys, monkeypatch):
    (folder / "mistaken.py").write_text("x = 1\ny = 2\ndef f(:\n")
    monkeypatch.syspath_prepend(folder)
    (folder / "recipe.py").write_text("import mistaken\n" + RECIPE)
    assert run(["compress", "recipe.py", "--out", "run"]) == 2
    assert f"line 3 of {folder / 'mistaken.py'} raised SyntaxError" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("text", "message"), BAD_RECIPES.items())
def test_a_bad_recipe_is_one_sentence(text, message, folder, capsys):
    (folder / "recipe.py").write_text(text)
    before = read_files(folder)
    assert run(["compress", "recipe.py", "--out", "run", "--sparsity", "0.5"]) == 2
    assert capsys.readouterr().err == f"Error: {message}\n"
    assert read_files(folder) == before


def test_a_recipe_that_is_not_there(tmp_path, capsys):
    assert run(["compress", str(tmp_path / "none.py"), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"Error: RECIPE must be a Python file, but {tmp_path / 'none.py'} is not there.\n"
    assert not list(tmp_path.iterdir())
