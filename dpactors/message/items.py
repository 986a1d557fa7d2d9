"""CBOR items as bytes: the heads and scalars that generated encoders put together.

Short items come from tables; a table's index also refuses what is no integer.
"""

import struct
from array import array
from typing import Any, Final

from dpactors.message.errors import MessageError

TABLED: Final = 1024
"""Lengths and numbers below this have their bytes ready."""

NULL: Final = b"\xf6"
TRUE: Final = b"\xf5"
FALSE: Final = b"\xf4"

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY = 0x00, 0x20, 0x40, 0x60, 0x80
_DOUBLE = struct.Struct(">Bd").pack
_WIDTHS: Final = ((1 << 8, struct.Struct(">BB").pack, 24), (1 << 16, struct.Struct(">BH").pack, 25))
_WIDER: Final = ((1 << 32, struct.Struct(">BI").pack, 26), (1 << 64, struct.Struct(">BQ").pack, 27))


def _head(major: int, value: int) -> bytes:
    if value < 24:  # noqa: PLR2004 - CBOR: smaller numbers fit the first byte
        return bytes((major | value,))
    for limit, pack, code in (*_WIDTHS, *_WIDER):
        if value < limit:
            return pack(major | code, value)
    raise MessageError("a number does not fit 64 bits")


INTS: Final = [_head(_UNSIGNED, n) for n in range(TABLED)]
TEXTS: Final = [_head(_TEXT, n) for n in range(TABLED)]
BYTES: Final = [_head(_BYTES, n) for n in range(TABLED)]
ARRAYS: Final = [_head(_ARRAY, n) for n in range(TABLED)]


def int_item(value: int) -> bytes:
    """A whole number from -2^64 to 2^64 - 1, as far as CBOR goes without tags; raises MessageError beyond."""
    if type(value) is not int:
        value = value.__index__()
    return _head(_NEGATIVE, -1 - value) if value < 0 else _head(_UNSIGNED, value)


def float_item(value: float) -> bytes:
    """A number in eight bytes."""
    return _DOUBLE(0xFB, value)


def text_head(size: int) -> bytes:
    """What stands before `size` bytes of UTF-8."""
    return TEXTS[size] if size < TABLED else _head(_TEXT, size)


def bytes_head(size: int) -> bytes:
    """What stands before `size` bytes."""
    return BYTES[size] if size < TABLED else _head(_BYTES, size)


def array_head(count: int) -> bytes:
    """What stands before `count` items."""
    return ARRAYS[count] if count < TABLED else _head(_ARRAY, count)


def text_item(value: str) -> bytes:
    """A text as UTF-8."""
    data = value.encode()
    return text_head(len(data)) + data


def bytes_item(value: bytes) -> bytes:
    """Bytes as they are."""
    return bytes_head(len(value)) + value


def swapped(value: "array[int]") -> "array[int]":
    """A copy in the other byte order."""
    copy: array[Any] = value[:]
    copy.byteswap()
    return copy
