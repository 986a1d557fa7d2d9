"""Floor 5: performs an engine core's jobs with torch."""
