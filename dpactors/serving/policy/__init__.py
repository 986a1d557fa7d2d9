"""Rank choice as pure functions of a view and a request; a family a module, all of them by name in `registry`."""
