"""Plans as Triton reads them: configuration, flags, repositories. Must not know why a value was chosen."""
