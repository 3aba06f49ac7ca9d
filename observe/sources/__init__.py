"""Where numbers come from: a module for each source, all with `read()`. Must not know who keeps them."""
