"""Whether a value of a topology file fits the type that its key wants."""

import math
import types
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from attrs import frozen

from dpactors.topology.errors import shown
from dpactors.topology.source import toml_value

T = TypeVar("T")

_WORDS = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false"}


class Misfit(ValueError):
    """A value of the wrong type; the text says what is wanted."""


@frozen
class Fitted:
    """A value that fits."""

    value: Any


def wanted_text(wanted: Any) -> str:
    """A type in words for operators: ``a whole number``."""
    inner = _items(wanted)
    if inner is not None:
        return f"a list of {_WORDS.get(inner, 'values').removeprefix('a ')}{'s' if inner in (int, float) else ''}"
    return _WORDS.get(_without_none(wanted), "a table" if wanted is dict else "a list" if wanted is list else "a value")


def type_text(wanted: Any) -> str:
    """A type as code for tables: ``int``, ``list of str``."""
    inner = _items(wanted)
    if inner is not None:
        return f"list of {type_text(inner)}"
    return str(getattr(_without_none(wanted), "__name__", wanted))


def fit(value: Any, wanted: Any, raw: str | None = None) -> Any:
    """`value` as `wanted` (int, float, str, bool, ``tuple[int, ...]``, or one of them or None).

    `raw` is its text where it was given as text (``${NAME}``, ``--set``) and may stand for any type.
    Raises Misfit.
    """
    inner = _items(wanted)
    if inner is not None:
        if raw is not None and isinstance(value, str):
            value = toml_value(raw)
        if not isinstance(value, list):
            raise Misfit(f"is {shown(value)}, not {wanted_text(wanted)}")
        return tuple(fit(item, inner) for item in cast("list[Any]", value))
    wanted = _without_none(wanted)
    if raw is not None:
        value = _reread(value, raw, wanted)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**53 else math.inf
    right = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
    if not right or (isinstance(value, float) and not math.isfinite(value)):
        raise Misfit(f"is {shown(value)}, not {wanted_text(wanted)}")
    return value


def _reread(value: Any, raw: str, wanted: Any) -> Any:
    if wanted is str:
        return value if isinstance(value, str) else raw
    return toml_value(raw) if isinstance(value, str) else value


def _items(wanted: Any) -> Any:
    args = get_args(wanted)
    return args[0] if get_origin(wanted) is tuple and len(args) == 2 and args[1] is ... else None  # noqa: PLR2004


def _without_none(wanted: Any) -> Any:
    if get_origin(wanted) in (Union, types.UnionType):
        kept = [arg for arg in get_args(wanted) if arg is not type(None)]
        return kept[0] if len(kept) == 1 else object
    return wanted
