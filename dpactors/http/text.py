"""Text to token ids and back: the tokenizer and chat template of one model directory."""

import asyncio
import json
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, cast

from attrs import frozen
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from dpactors.http.errors import ApiError, HttpRoomError
from dpactors.http.openai import ChatRequest, Defaults
from dpactors.message.message import Tokens
from dpactors.models import model_dir

THREAD_FROM_CHARS = 10_000
"""Shorter text is encoded at once: about 1 ms per 10,000 characters, less than a trip to a thread and back costs."""
THREADS = 2


class ModelTextError(HttpRoomError):
    """A model directory whose tokenizer or chat template cannot be used; says which file and why."""


@frozen
class Configs:
    """The JSON files of a checkpoint directory; empty where one is absent."""

    model: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    generation: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Configs":
        """Read them; raises ModelTextError that names a malformed file."""
        names = ("config.json", "tokenizer_config.json", "generation_config.json")
        return cls(*[_json_file(folder / name) for name in names])


class ModelText:
    """Encodes, decodes and renders for one model."""

    def __init__(self, tokenizer: Tokenizer, template: str | None, configs: "Configs") -> None:
        self.tokenizer = tokenizer
        self.special = frozenset(id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        """Ids that output text leaves out."""
        self._template = None if template is None else _environment().from_string(template)
        self._specials = _special_tokens(configs.tokenizer)
        model = configs.model.get("text_config") or configs.model
        self.context = int(model.get("max_position_embeddings") or 0)
        """The checkpoint's own limit of prompt + output, in tokens; 0 where it names none."""
        self.vocabulary = int(model.get("vocab_size") or tokenizer.get_vocab_size())
        self.defaults = _defaults(configs.generation)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="encode")

    @classmethod
    def load(cls, model: str) -> "ModelText":
        """Read tokenizer.json, the chat template and the configs of a model; blocks.

        Raises FileNotFoundError or ModelTextError that names the file.
        """
        folder = model_dir(model)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"model {model!r}: no tokenizer.json in {folder}")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            # The tokenizers library raises bare Exception for every malformed file.
            raise ModelTextError(f"{path}: not a tokenizer this version of tokenizers reads: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        configs = Configs.read(folder)
        try:
            return cls(tokenizer, _template_of(folder, configs.tokenizer), configs)
        except TemplateError as error:
            raise ModelTextError(f"chat template of {folder}: {error}") from error

    def close(self) -> None:
        """Let the encoding threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def encode(self, text: str, *, add_special_tokens: bool) -> Tokens:
        """Token ids of `text`; long text is encoded in a thread."""
        if len(text) < THREAD_FROM_CHARS:
            return self._encode(text, add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._encode, text, add_special_tokens)

    async def encode_chat(self, request: ChatRequest) -> Tokens:
        """Token ids of a rendered conversation; raises ApiError 400 where the template refuses it."""
        special = request.options.add_special_tokens
        if sum(len(message["content"]) for message in request.messages) < THREAD_FROM_CHARS and not request.tools:
            return self._encode(self.render(request), special)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: self._encode(self.render(request), special))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of whole sequences of ids."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def render(self, request: ChatRequest) -> str:
        """The conversation as one prompt text; raises ApiError 400 where the template refuses it."""
        if self._template is None:
            raise ApiError(400, "this model has no chat template; use /v1/completions", "messages")
        values: dict[str, Any] = {
            **dict(request.template_arguments),
            **self._specials,
            "messages": list(request.messages),
            "tools": list(request.tools) if request.tools else None,
            "documents": None,
            "add_generation_prompt": request.add_generation_prompt,
        }
        try:
            return self._template.render(values)
        except Exception as error:
            # A template is foreign code over foreign data: whatever it raises, this conversation does not fit it.
            why = str(error) if isinstance(error, TemplateError) else type(error).__name__
            raise ApiError(400, f"the chat template refuses these messages: {why}", "messages") from error

    def _encode(self, text: str, add_special_tokens: bool) -> Tokens:
        # As a batch of one: encode alone holds the interpreter lock, so that a thread would free nobody.
        (encoded,) = self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return array("i", encoded.ids)


class GenerationTag(Extension):
    """``{% generation %}``: marks assistant text for training in Hugging Face templates; here it shows its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the tag by what is in it."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """The environment that Hugging Face templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    names = cast("dict[str, Any]", environment.globals)
    names["raise_exception"] = _raise
    names["strftime_now"] = _strftime_now
    return environment


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _defaults(generation: Mapping[str, Any]) -> Defaults:
    """As vLLM: a checkpoint's generation_config says how its authors want it sampled."""
    named = {name: generation[name] for name in ("temperature", "top_p", "top_k") if generation.get(name) is not None}
    return Defaults(**named)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """Names like bos_token and their text; a config spells a token as text or as an object with content."""
    found: dict[str, Any] = {"bos_token": "", "eos_token": ""}
    for name, value in config.items():
        if not name.endswith("_token"):
            continue
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get("content")  # noqa: PLW2901
        if isinstance(value, str):
            found[name] = value
    return found


def _template_of(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {item["name"]: item["template"] for item in cast("list[dict[str, str]]", template)}
        return named.get("default")
    return template


def _json_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelTextError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ModelTextError(f"{path}: wants a JSON object")
    return cast("dict[str, Any]", found)
