"""Open-loop load, raw samples, percentiles, verdicts. Must not know the inside of the engine."""
