"""Bytes on disk of a ResNet20 with zeros, in each format.

python benchmarks/sparse_files.py --dense resnet20.safetensors --out results/compression

The network is pruned by magnitude, each 3x3 convolution but the first at the paper's rate; it is not trained again, so
these are sizes and nothing else.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import load_file

import spikeslab as ss
from spikeslab.compression.sparse_file import DENSE, file_sizes
from spikeslab.paper.cifar10 import resnet20
from spikeslab.report.tables import Column, Provenance, Table


def main() -> None:
    """Prune, count and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dense", type=Path, required=True, help="state_dict of a trained resnet20, safetensors")
    parser.add_argument("--sparsity", type=float, default=0.9, help="share of zeros in the whole network")
    parser.add_argument("--out", type=Path, help="folder for the table")
    options = parser.parse_args()
    model = resnet20()
    model.load_state_dict(load_file(options.dense))
    weights = ss.select_weights(model, "layer*.conv*.weight")
    ss.Pruner(weights, ss.schedules.constant(options.sparsity), network=model).step()
    tensors = ss.compression.finalize(model).state_dict()
    sizes = file_sizes(tensors, tensors)
    rows = [{"file": name, "bytes": size, "smaller": sizes[DENSE] / size} for name, size in sizes.items()]
    columns = [Column("file", "File"), Column("bytes", "bytes", ","), Column("smaller", "times smaller", ".2f")]
    nonzeros = sum(int(parameter.count_nonzero()) for parameter in model.parameters())
    notes = [f"Pruned by magnitude, {nonzeros:,} parameters are left; it was not trained again."]
    title = f"Files of a ResNet20 with {100 * options.sparsity:g} % zeros"
    table = Table(title, columns, rows, notes)
    print(table.markdown())
    if options.out is not None:
        command = f"python benchmarks/sparse_files.py --dense resnet20.safetensors --sparsity {options.sparsity:g}"
        table.write(options.out / "files", Provenance(command, seed=0))


if __name__ == "__main__":
    main()
