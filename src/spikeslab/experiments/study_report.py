"""Tables and figures of a simulation study, in its folder."""

from __future__ import annotations

from pathlib import Path

from spikeslab.experiments.study import CELLS, Outcome, study_tables
from spikeslab.experiments.study_figures import latents_figure, posterior_figure
from spikeslab.report.figures import save
from spikeslab.report.tables import Run, Table


def command(outcome: Outcome) -> str:
    """What to type to get the same numbers."""
    plan = outcome.plan
    options = f"--seed {plan.seed} --seeds {plan.seeds} --sgld-seeds {plan.sgld_seeds} --steps {plan.steps}"
    return f"spikeslab reproduce {outcome.study.name} {options}"


def write_study(outcome: Outcome, out: Path) -> tuple[list[Table], list[Path]]:
    """Write all tables and figures, replacing earlier ones; returns the tables and the paths of all files."""
    run = Run(command(outcome), outcome.plan.seed)
    paper_table, paper_figure = outcome.study.paper
    tables = study_tables(outcome)
    files = [out / CELLS]
    for table, name in zip(tables, (paper_table, "methods", "differences"), strict=True):
        files += table.write(out / name, run)
    files.append(save(posterior_figure(outcome), out / f"{paper_figure}.png"))
    files.append(save(latents_figure(outcome), out / "latents.png"))
    return tables, files
