"""Cost against size: parameters, layers, ranks, samples on disk and lines of a log."""
