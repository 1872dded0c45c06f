"""Graphs of networks: tracing, groups of channels, folding and surgery."""
