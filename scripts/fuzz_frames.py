"""Can any bytes make the codec or a link do more than refuse them.

Coverage-guided, from real frames of every message of the package onwards; a crash, a hang of a second or memory beyond
1 GiB ends it with the bytes that did it. Needs ``pip install 'dpactors[fuzz]'``.

    python scripts/fuzz_frames.py [-max_total_time=60] [libFuzzer options] [CORPUS]
"""

import contextlib
import sys
import tempfile
from array import array
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import atheris
import attrs

with atheris.instrument_imports(include=["dpactors"]):
    from dpactors.message.codec import decode, encode
    from dpactors.message.errors import MessageError
    from dpactors.message.message import all_tags
    from dpactors.net import frames
    from dpactors.net.frames import DATA, LATEST, WELCOME, Greeting
    from dpactors.net.link import LinkMachine
    from dpactors.runtime import control
    from dpactors.serving import messages

DEFAULTS = ["-max_total_time=60", "-max_len=4096", "-timeout=1", "-rss_limit_mb=1024"]


def example(hint: Any) -> Any:
    """Some value of an annotated type."""
    if hint is array or get_origin(hint) is array:
        return array("i", [1, -2, 3])
    if isinstance(hint, type) and attrs.has(hint):
        return made(hint)
    if get_origin(hint) is tuple:
        return (example(get_args(hint)[0]),)
    if get_origin(hint) in (UnionType, Union):
        return example(next(one for one in get_args(hint) if one is not NoneType))
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    return {int: 7, float: 0.5, str: "word", bytes: b"\0\1", bool: True}[hint]


def made(cls: type) -> Any:
    hints = get_type_hints(cls)
    return cls(*[example(hints[one.name]) for one in attrs.fields(cls)])


def seeds(folder: Path) -> None:
    """A frame of each message, and a greeting."""
    for number, cls in enumerate(all_tags().values()):
        item = frames.envelope(number, "trace", encode(made(cls)))
        for kind in (DATA, LATEST):
            (folder / f"{number}.{kind}").write_bytes(frames.write_frame(kind, 2, 1, 0, 0, 0, [item]))
        (folder / f"{number}.message").write_bytes(encode(made(cls)))
    (folder / "greeting").write_bytes(frames.write_greeting(Greeting(WELCOME, 1, "peer", 2, "d", "0", 1)))


def try_bytes(data: bytes) -> None:
    """Whatever `data` is: a message error, a message, or notices."""
    with contextlib.suppress(MessageError):
        decode(data)
    machine = LinkMachine("me", "peer", 1, "d")
    machine.receive(frames.write_greeting(Greeting(WELCOME, frames.LINK_VERSION, "peer", 2, "d", "0", 1)), 0.0)
    machine.receive(data, 0.1)
    machine.frames_to_send(0.2)


def main() -> None:
    assert control
    assert messages
    with tempfile.TemporaryDirectory(prefix="dpf-") as folder:
        seeds(Path(folder))
        given = sys.argv[1:]
        atheris.Setup([sys.argv[0], *DEFAULTS, *given, folder], try_bytes)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
