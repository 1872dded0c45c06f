"""Bytes that ranks exchange: those of the tensors in collective operations, and those that arrive on the wire."""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SOCKETS = Path("/proc/self/fd")
TCP_INFO = getattr(socket, "TCP_INFO", None)
INFO_SIZE, RECEIVED = 256, 128
"""Bytes of Linux's ``tcp_info`` that are asked for, and the place of ``tcpi_bytes_received`` among them."""


class Traffic(TorchDispatchMode):
    """Count the collective operations of this thread and the bytes of their tensors, the largest of each operation.

    That is the whole tensor, whose parts the ranks exchange: what an operation sends depends on its algorithm.

    Attributes:
        sizes: Bytes by operation.
        calls: Number of calls by operation.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation of torch.distributed, and run all."""
        if func.namespace == "c10d":
            name = func.__name__.partition(".")[0].strip("_")
            self.sizes[name] += max((leaf.nbytes for leaf in tree_leaves(args) if isinstance(leaf, Tensor)), default=0)
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def count_received() -> int | None:
    """Return the bytes that have arrived at the open TCP sockets of this process; ``None`` where only Linux tells."""
    if TCP_INFO is None or not SOCKETS.is_dir():
        return None
    total = 0
    for entry in list(SOCKETS.iterdir()):
        with suppress(OSError):  # it is no socket, none of TCP, or closed by now
            if str(entry.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                    info = connection.getsockopt(socket.IPPROTO_TCP, TCP_INFO, INFO_SIZE)
                total += struct.unpack_from("Q", info, RECEIVED)[0]
    return total
