"""Triton's batcher and the decode loop on one virtual clock. Must not know how settings are chosen."""
