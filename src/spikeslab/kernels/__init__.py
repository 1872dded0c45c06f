"""Compiled kernels of the samplers: counter-based noise and the fused update."""
