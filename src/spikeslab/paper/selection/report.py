"""Tables and figures of a simulation study, in its folder."""

from __future__ import annotations

from pathlib import Path

from spikeslab.paper.selection.figures import latents_figure, posterior_figure
from spikeslab.paper.selection.study import CELLS, Outcome, Study, study_tables
from spikeslab.report.figures import save
from spikeslab.report.tables import Provenance, Table


def command(outcome: Outcome) -> str:
    """What to type to get the same numbers."""
    plan = outcome.plan
    options = f"--seed {plan.seed} --seeds {plan.seeds} --sgld-seeds {plan.sgld_seeds} --steps {plan.steps}"
    return f"spikeslab reproduce {outcome.study.name} {options}"


def file_names(study: Study) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the tables and of the figures."""
    paper_table, paper_figure = study.paper
    return (paper_table, "methods", "differences"), (paper_figure, "latents")


def write_study(outcome: Outcome, out: Path) -> tuple[list[Table], list[Path]]:
    """Write all tables and figures, replacing earlier ones; returns the tables and the paths of all files."""
    run = Provenance(command(outcome), outcome.plan.seed)
    table_names, figure_names = file_names(outcome.study)
    tables = study_tables(outcome)
    files = [out / CELLS]
    for table, name in zip(tables, table_names, strict=True):
        files += table.write(out / name, run)
    figures = posterior_figure(outcome), latents_figure(outcome)
    files += [save(figure, out / f"{name}.png") for figure, name in zip(figures, figure_names, strict=True)]
    return tables, files
