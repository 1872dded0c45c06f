"""The paper's experiments: its data, networks, tables and figures, one folder for each."""

from spikeslab.paper.data_files import DataError

__all__ = ["DataError"]
