"""Floor 6: virtual clock and a seeded network for the same actors."""
