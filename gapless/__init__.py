"""The command line and the server launcher: wires rooms, holds no logic of its own."""
