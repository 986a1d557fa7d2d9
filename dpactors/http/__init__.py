"""Floor 5: the HTTP edge; OpenAI JSON <-> serving messages."""
