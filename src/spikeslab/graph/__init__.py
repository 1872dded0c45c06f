"""Graphs of networks: tracing, groups of channels, live channels, folding and surgery."""
