"""Small systems for exhaustive exploration, built from the code that serves."""
