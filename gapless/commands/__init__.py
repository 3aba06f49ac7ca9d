"""One module per sub-command: `run` (a command) or `app` (a group)."""
