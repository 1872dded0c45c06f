"""Pure functions on lists of tensors: the mixture prior, the sampler updates, exact thresholds, noise.

Nothing here keeps state or reads a file, and noise is a function of seed and step. Every update has a single-tensor and
a ``foreach`` variant that agree, and on the CPU a fused one in compiled kernels (numba), with noise of its own; the
objects in the rooms above choose between them.
"""
