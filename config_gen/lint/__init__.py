"""Mistakes in a Triton model repository, ours or not: rules over its files. No server is asked."""
