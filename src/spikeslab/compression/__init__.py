"""Networks that are really smaller."""

from spikeslab.compression.compact import Compacted, compact
from spikeslab.compression.compact_report import CompactReport, LayerSize
from spikeslab.compression.fold import fold_batch_norm

__all__ = ["CompactReport", "Compacted", "LayerSize", "compact", "fold_batch_norm"]
