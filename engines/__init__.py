"""Runs built engines: texts, pictures or arrays in, arrays out. Must not know policy or the SLA file."""
