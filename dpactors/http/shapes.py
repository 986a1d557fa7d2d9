"""OpenAI response JSON, whole and as server-sent events."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import orjson
from attrs import frozen

from dpactors.http.errors import ApiError, error_object
from dpactors.http.streams import Choice, Piece
from dpactors.serving.messages import FinishReason

Kind: TypeAlias = Literal["completion", "chat"]

DONE = b"data: [DONE]\n\n"
_OBJECTS = {
    ("completion", False): "text_completion",
    ("completion", True): "text_completion",
    ("chat", False): "chat.completion",
    ("chat", True): "chat.completion.chunk",
}


@frozen
class Reply:
    """What all parts of one answer share."""

    kind: Kind
    request_id: str
    model: str
    created: int
    """Unix time, s."""
    prompt_texts: tuple[str, ...] = ()
    """Text of each choice's prompt where the request asked for an echo, else empty."""
    token_ids: bool = False
    """Whether ids stand beside the text."""
    include_usage: bool = False
    continuous_usage: bool = False

    def head(self, *, streamed: bool) -> dict[str, Any]:
        """The fields before `choices`."""
        prefix = "chatcmpl-" if self.kind == "chat" else "cmpl-"
        return {
            "id": prefix + self.request_id,
            "object": _OBJECTS[self.kind, streamed],
            "created": self.created,
            "model": self.model,
        }


def usage(choices: Sequence[Choice], per_prompt: int) -> dict[str, Any]:
    """Token counts; a prompt counts once however many of its `per_prompt` choices there are."""
    prompts = choices[::per_prompt]
    prompt = sum(len(choice.generate.prompt) for choice in prompts)
    completion = sum(choice.token_count for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in prompts)},
    }


def whole(reply: Reply, pieces: Sequence[Piece], per_prompt: int) -> bytes:
    """The JSON answer of a request that does not stream; one piece a choice."""
    in_order = sorted(pieces, key=lambda piece: piece.choice.index)
    choices = [_whole_choice(reply, piece) for piece in in_order]
    answer = {
        **reply.head(streamed=False),
        "choices": choices,
        "usage": usage([piece.choice for piece in in_order], per_prompt),
    }
    if reply.token_ids and reply.kind == "chat":
        answer["prompt_token_ids"] = list(in_order[0].choice.generate.prompt)
    return orjson.dumps(answer)


def _whole_choice(reply: Reply, piece: Piece) -> dict[str, Any]:
    choice = piece.choice
    made: dict[str, Any] = {"index": choice.index}
    if reply.kind == "chat":
        made["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
    else:
        made["text"] = (reply.prompt_texts[choice.index] if reply.prompt_texts else "") + piece.text
    made |= {"logprobs": None, "finish_reason": choice.finish, "stop_reason": choice.stop_reason}
    if reply.token_ids:
        made["token_ids"] = list(piece.tokens)
        if reply.kind == "completion":
            made["prompt_token_ids"] = list(choice.generate.prompt)
    return made


def error_event(error: ApiError) -> bytes:
    """The event that ends a stream which failed; no terminator may follow it."""
    return b"data: " + orjson.dumps(error_object(error.status, error.message, error.param)) + b"\n\n"


class Events:
    """Server-sent events of one answer. Mutable: knows which choices have begun."""

    def __init__(self, reply: Reply, choices: Sequence[Choice], per_prompt: int) -> None:
        self._reply = reply
        self._choices = choices
        self._per_prompt = per_prompt
        self._begun: set[int] = set()
        self._chat = reply.kind == "chat"
        self._plain = not (reply.token_ids or reply.continuous_usage)
        start = orjson.dumps(reply.head(streamed=True))[:-1]
        text = b'"delta":{"content":' if self._chat else b'"text":'
        self._before = [b'data: %s,"choices":[{"index":%d,%s' % (start, i, text) for i in range(len(choices))]
        self._after = b'%s,"logprobs":null,"finish_reason":null}]%s}\n\n' % (
            b"}" if self._chat else b"",
            b',"usage":null' if reply.include_usage else b"",
        )

    def of(self, piece: Piece) -> bytes:
        """The events of one piece; empty where its tokens brought no text yet."""
        choice = piece.choice
        first = b"" if choice.index in self._begun else self._begin(choice)
        if choice.finish is None:
            return first + self._text(piece)
        if self._chat:
            # The finish has a chunk of its own, after the last text.
            return first + self._text(piece) + self._event(choice, {}, choice.finish)
        return first + self._event(choice, piece.text, choice.finish, piece.tokens)

    def end(self) -> bytes:
        """What follows the last choice's finish."""
        if not self._reply.include_usage:
            return DONE
        last: dict[str, Any] = {
            **self._reply.head(streamed=True),
            "choices": [],
            "usage": usage(self._choices, self._per_prompt),
        }
        return b"data: " + orjson.dumps(last) + b"\n\n" + DONE

    def _text(self, piece: Piece) -> bytes:
        if self._plain:
            if not piece.text:
                return b""
            return self._before[piece.choice.index] + orjson.dumps(piece.text) + self._after
        if not piece.text and not (self._reply.token_ids and piece.tokens):
            return b""
        content: Any = {"content": piece.text} if self._chat else piece.text
        return self._event(piece.choice, content, None, piece.tokens)

    def _begin(self, choice: Choice) -> bytes:
        """What comes before the first text: the role in a chat, the echo of a completion's prompt."""
        self._begun.add(choice.index)
        reply = self._reply
        if self._chat:
            return self._event(choice, {"role": "assistant", "content": ""}, None, first=True)
        if reply.prompt_texts or reply.token_ids:
            echo = reply.prompt_texts[choice.index] if reply.prompt_texts else ""
            return self._event(choice, echo, None, first=True)
        return b""

    def _event(
        self,
        choice: Choice,
        content: Any,
        finish: FinishReason | None,
        tokens: Sequence[int] = (),
        *,
        first: bool = False,
    ) -> bytes:
        made: dict[str, Any] = {"index": choice.index, "delta" if self._chat else "text": content}
        made |= {"logprobs": None, "finish_reason": finish}
        if finish is not None:
            made["stop_reason"] = choice.stop_reason
        event = {**self._reply.head(streamed=True), "choices": [made]}
        if self._reply.token_ids:
            made["token_ids"] = list(tokens)
            if first:
                (event if self._chat else made)["prompt_token_ids"] = list(choice.generate.prompt)
        if self._reply.continuous_usage:
            event["usage"] = usage(self._choices, self._per_prompt)
        elif self._reply.include_usage:
            event["usage"] = None
        return b"data: " + orjson.dumps(event) + b"\n\n"
