"""Floor 2: actors, ports, effects, budgets. No word of LLMs, ZeroMQ or asyncio."""
