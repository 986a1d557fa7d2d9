"""Messages: frozen attrs classes with a lasting tag, and the registry that knows them all."""

from array import array
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias, TypeVar, dataclass_transform

import attrs

from dpactors.message.errors import DuplicateTag

T = TypeVar("T")

if TYPE_CHECKING:
    Tokens: TypeAlias = "array[int]"
else:
    Tokens = array  # Python 3.11 cannot subscript it at run time, where the codec reads annotations
"""Token ids, shape [length], typecode ``i`` (int32); travels as little-endian bytes."""

_BY_TAG: dict[str, type] = {}
_TAG_OF: dict[type, str] = {}


def tokens(ids: Iterable[int] = ()) -> Tokens:
    """Token ids as the int32 array in which they live and travel.

    Raises OverflowError for an id outside int32.
    """
    return array("i", ids)


@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def message(tag: str) -> Callable[[type[T]], type[T]]:
    """Make an annotated class a message: frozen, slotted, with a tag that never changes meaning.

    A changed meaning is a new tag (``.../2``). Raises DuplicateTag when another class has it.
    """

    def wrap(cls: type[T]) -> type[T]:
        made = attrs.frozen(cls)
        known = _BY_TAG.get(tag)
        if known is not None and known.__qualname__ != made.__qualname__:
            raise DuplicateTag(f"{tag} is {known.__qualname__}'s, {made.__qualname__} needs a tag of its own")
        _BY_TAG[tag] = made
        _TAG_OF[made] = tag
        return made

    return wrap


def tag_of(cls: type) -> str:
    """The lasting tag of a message class; raises KeyError for a class that is no message."""
    return _TAG_OF[cls]


def class_of(tag: str) -> type | None:
    """The class behind a tag, or None where this process knows none."""
    return _BY_TAG.get(tag)


def is_message(cls: object) -> bool:
    """Whether `cls` was made by ``@message``."""
    return isinstance(cls, type) and cls in _TAG_OF


def all_tags() -> dict[str, type]:
    """Every tag known to this process, in order of tag."""
    return dict(sorted(_BY_TAG.items()))
