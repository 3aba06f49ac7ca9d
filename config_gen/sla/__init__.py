"""The SLA file: units, checks, all mistakes at once, and who arrives when by it. Must not know plans or servers."""
