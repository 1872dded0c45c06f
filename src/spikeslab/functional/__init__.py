"""Pure functions on lists of tensors: the mixture prior, the sampler updates, exact thresholds.

Nothing here keeps state, reads a file or draws a random number. Every update has a single-tensor and a
``foreach`` variant that agree; the objects in the rooms above choose between them.
"""
