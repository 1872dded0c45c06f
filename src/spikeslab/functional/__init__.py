"""Equations as pure functions: the mixture prior, the updates of the samplers, exact thresholds, R-hat and ESS.

Nothing here keeps state, draws noise or reads a file. Every update has a single-tensor and a ``foreach`` variant that
agree; :mod:`spikeslab.kernels` has the fused ones.
"""
