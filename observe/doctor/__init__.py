"""What ails a server, from a window of its samples. Must not know how samples are taken."""
