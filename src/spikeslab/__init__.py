"""Sparse Bayesian deep learning for PyTorch."""
