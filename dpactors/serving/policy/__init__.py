"""Rank choice as pure functions of a view."""
