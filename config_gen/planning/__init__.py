"""From the file and what was measured to settings that keep it, each with its reason. Must not know Triton's files."""
