"""Typed reading of a JSON object: null is the same as absent, and what does not fit is refused by name."""

from collections.abc import Mapping
from typing import Any, cast

from dpactors.http.errors import ApiError

INT32_MAX = (1 << 31) - 1


def field_error(name: str, problem: str) -> ApiError:
    """A 400 about one field."""
    return ApiError(400, f"{name} {problem}", name)


class Fields:
    """One JSON object, read field by field."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    @classmethod
    def of(cls, body: object) -> "Fields":
        """Wrap a parsed body; raises ApiError 400 unless it is an object."""
        if not isinstance(body, dict):
            raise ApiError(400, "the body wants to be a JSON object")
        return cls(cast("dict[str, Any]", body))

    def names(self) -> set[str]:
        """Names of the fields that are present."""
        return set(self._values)

    def get(self, name: str) -> Any:
        """The raw value, None where absent."""
        return self._values.get(name)

    def required(self, name: str) -> Any:
        """The raw value; raises ApiError 400 where it is absent or null."""
        value = self.get(name)
        if value is None:
            raise self._error(name, "is required")
        return value

    def text(self, name: str) -> str | None:
        """A string or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self._error(name, "wants a string")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        """A boolean."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._error(name, "wants true or false")
        return value

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """An integer from `low` to `high`; 16.0 counts as 16."""
        value = self.get(name)
        if value is None:
            return default
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise self._error(name, f"wants an integer from {low} to {high}")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        value = self.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not low <= value <= high:
            raise self._error(name, f"wants a number from {low:g} to {high:g}")
        return float(value)

    def integers(self, name: str, count_max: int) -> list[int]:
        """A list of token ids, empty where absent."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(cast("list[object]", value)) > count_max:
            raise self._error(name, f"wants a list of at most {count_max} token ids")
        items = cast("list[object]", value)
        if not all(type(item) is int and 0 <= item <= INT32_MAX for item in items):
            raise self._error(name, "wants token ids: integers, not negative")
        return cast("list[int]", items)

    def objects(self, name: str) -> tuple[dict[str, Any], ...] | None:
        """A list of objects, None where absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast("list[object]", value)):
            raise self._error(name, "wants a list of objects")
        return tuple(cast("list[dict[str, Any]]", value))

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object, empty where absent."""
        value = self.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._error(name, "wants an object")
        return cast("dict[str, Any]", value)

    def _error(self, name: str, problem: str) -> ApiError:
        return field_error(self._prefix + name, problem)
