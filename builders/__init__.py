"""Weights in, served models out. Must not know Triton or scheduling."""
