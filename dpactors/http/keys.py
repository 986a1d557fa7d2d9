"""API keys: a file with one a line, of which a request must bear one."""

import hmac
from collections.abc import Iterable
from pathlib import Path

from dpactors.http.errors import ApiError, HttpRoomError

OPEN_PATHS = frozenset({"/health", "/ping", "/ready", "/metrics", "/version"})
"""For probes and scrapers, which have no key."""
KEY_CHARS_MAX = 512


class KeysFileError(HttpRoomError):
    """A file of API keys that is none; says which and what to do."""


def read_keys(file: str) -> tuple[bytes, ...]:
    """The keys in `file`, but for empty and ``#`` lines; none where no file is named. Raises KeysFileError."""
    if not file:
        return ()
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise KeysFileError(f"api_keys: {file} cannot be read: {why}. Name a file with one key a line") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise KeysFileError(f"api_keys: {file} holds no key. Write one a line, or leave api_keys out to ask for none")
    for number, key in enumerate(keys, 1):
        if len(key) > KEY_CHARS_MAX or not all("!" <= char <= "~" for char in key):
            raise KeysFileError(
                f"api_keys: key {number} of {file} is not printable ASCII without spaces. Write another"
            )
    return tuple(key.encode() for key in keys)


class Doorman:
    """Lets requests in that bear one of the keys; without keys, all."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = tuple(keys)

    def refusal(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> ApiError | None:
        """The 401 for a request that may not pass, None for one that may."""
        if not self._keys or path in OPEN_PATHS:
            return None
        shown = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, key = shown.partition(b" ")
        # Every key is compared, each in time that does not tell how much of it was right.
        right = [hmac.compare_digest(key.strip(), one) for one in self._keys]
        if scheme.lower() == b"bearer" and any(right):
            return None
        return ApiError(401, "this server wants an API key: Authorization: Bearer KEY")
