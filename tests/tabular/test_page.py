"""Sentences of the page of a selection; the page itself is tested with the command."""

import numpy as np
import pandas as pd

from spikeslab.errors import spell
from spikeslab.tabular.design import make_design
from spikeslab.tabular.page import describe_dropped, describe_family
from spikeslab.tabular.table import DataTable
from spikeslab.tabular.target import Target, read_target


def test_the_family_and_its_reason():
    table = DataTable("t.csv", pd.DataFrame({"y": [1.5, 2.0, 4.0]}))
    assert spell(describe_family(read_target(table, "y"))) == (
        "gaussian, guessed from the target: it holds numbers. Set family to choose another."
    )
    assert describe_family(Target("y", "binomial", np.array([0, 1]))) == "binomial, as given."


def test_columns_that_were_left_out_by_reason():
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 1], "y": [1.0, 2.0]} | {f"c{i}": [1, 1] for i in range(14)})
    assert [*describe_dropped(make_design(DataTable("t.csv", frame), "y", drop=["b"]))] == [
        "Left out (on request): b.",
        f"Left out (constant): {', '.join(f'c{i}' for i in range(12))} and 2 more.",
    ]
