"""Metric declarations, samples of metrics and machines, and what they say. Must not know how requests are scheduled."""
