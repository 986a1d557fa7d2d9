"""Floor 4: the vocabulary and all actors of data-parallel serving. Pure."""
