"""Marks each test by the folder it lies in."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        kind = item.path.relative_to(HERE).parts[0]
        if kind in ("unit", "model", "world", "live"):
            item.add_marker(kind)
