"""Metric declarations. Must not know how requests are scheduled."""
