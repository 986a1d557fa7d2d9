"""Floor 3: links, how a message reaches a peer."""
