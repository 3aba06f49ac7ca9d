"""What Triton loads when the load generator itself is measured. Must not know how it is loaded."""
