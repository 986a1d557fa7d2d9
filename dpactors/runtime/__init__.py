"""Floor 6: real clock, sockets and processes."""
