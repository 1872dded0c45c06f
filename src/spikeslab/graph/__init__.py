"""Tracing of a network: which channels belong together, which can go, and how a layer loses them."""
