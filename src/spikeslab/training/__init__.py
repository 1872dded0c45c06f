"""The training runtime: a small loop, callbacks, checkpoints with exact resume, chains and processes."""
