"""The engine's inside: queue, KV blocks, budget. Pure."""
