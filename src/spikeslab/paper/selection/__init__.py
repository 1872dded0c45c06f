"""Simulation studies of variable selection, shared by the linear and the logistic experiment."""
