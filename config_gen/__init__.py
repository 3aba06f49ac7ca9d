"""The SLA file and everything derived from it: pure text and numbers. Must not know torch or sockets."""
