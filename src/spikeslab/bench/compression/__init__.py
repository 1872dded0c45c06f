"""Suite ``compression``: sparse networks by ``compress``, gradual pruning, torch's pruning, a fixed L2 and torchao."""
