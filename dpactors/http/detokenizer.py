"""Token ids to text as they come, with no part of a stop string ever shown."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

HOLD_TOKENS_MAX = 256
"""Tokens whose bytes may wait for the rest of a character; more than that is no character, and is shown as it is."""


class Detokenizer:
    """The text of one sequence. Mutable: one per sequence.

    Text may be held back: bytes of an unfinished character, and an ending that may become a stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: tuple[str, ...] = (),
        *,
        special: AbstractSet[int] = frozenset(),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        """Tokens to leave out: the special ones, or none."""
        self._stream = DecodeStream(skip_special_tokens=bool(special))
        self._context: list[int] = []
        """The tokens of the last text shown: what comes after decodes as it would in the whole."""
        self._pending: list[int] = []
        """Tokens that brought no text yet."""
        self._stops = stops
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._held = ""
        self.stopped: str | None = None
        """The stop string that was met; nothing comes after it."""
        self.token_count = 0
        """Tokens taken in, up to the one that completed a stop string."""

    @property
    def may_stop(self) -> bool:
        """Whether there are stop strings to look for."""
        return bool(self._stops)

    def push(self, ids: Sequence[int]) -> str:
        """Take new tokens; returns the text that may be shown now."""
        if not self._stops:
            self.token_count += len(ids)
            return self._decode_all(ids)
        shown: list[str] = []
        for token in ids:
            if self.stopped is not None:
                break
            self.token_count += 1
            shown.append(self._show(self._decode(token)))
        return "".join(shown)

    def finish(self) -> str:
        """The end came: returns all text that was still held back, unless it completes a stop string."""
        rest = self._show(self._flush())
        held, self._held = self._held, ""
        return rest + held if self.stopped is None else rest

    def _decode_all(self, ids: Sequence[int]) -> str:
        return "".join([self._decode(token) for token in ids])

    def _decode(self, token: int) -> str:
        if token in self._special:
            return ""  # never given to the stream: it would decode a run of them anew at each step
        self._pending.append(token)
        if len(self._pending) > HOLD_TOKENS_MAX:
            text = self._flush()
            self._stream = DecodeStream(skip_special_tokens=bool(self._special))
            self._context = []
            return text
        text = self._stream.step(self._tokenizer, token)
        if not text:
            return ""
        self._context = self._pending
        self._pending = []
        return text

    def _flush(self) -> str:
        """Decode what is pending, however unfinished; a lone byte becomes U+FFFD as in a decode of the whole."""
        if not self._pending:
            return ""
        before = self._tokenizer.decode(self._context, skip_special_tokens=bool(self._special))
        whole = self._tokenizer.decode(self._context + self._pending, skip_special_tokens=bool(self._special))
        self._pending = []
        return whole[len(before) :]

    def _show(self, text: str) -> str:
        """Pass `text` on, up to a stop string or to what may be the beginning of one."""
        if not self._stops:
            return text
        window = self._held + text
        if self.token_count <= self._min_tokens:
            # vLLM too ignores stop strings before min_tokens; their text is shown, so none can begin in it.
            self._held = ""
            return window
        hits = [(at, stop) for stop in self._stops if (at := window.find(stop)) >= 0]
        if hits:
            at, self.stopped = min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            self._held = ""
            return window[: at + len(self.stopped)] if self._include_stop else window[:at]
        keep = held_length(window, self._stops)
        self._held = window[len(window) - keep :]
        return window[: len(window) - keep]


def held_length(text: str, stops: tuple[str, ...]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string."""
    longest = min(max(map(len, stops), default=1) - 1, len(text))
    for length in range(longest, 0, -1):
        tail = text[len(text) - length :]
        if any(stop.startswith(tail) for stop in stops):
            return length
    return 0
