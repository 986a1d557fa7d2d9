"""What does the code promise? Writes docs/reference/{messages,settings}.md from it; --check only compares."""

import ast
import inspect
import itertools
import sys
from pathlib import Path
from typing import Any

import attrs

import dpactors.runtime.control
import dpactors.serving.messages
from dpactors.actor.actor import Actor
from dpactors.message.message import all_tags
from dpactors.runtime.supervising import Supervising
from dpactors.serving.catalogue import CATALOGUE

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
MODULES = (dpactors.serving.messages, dpactors.runtime.control)


def field_docs(cls: type) -> dict[str, str]:
    """The string literals under a class's fields, by field."""
    tree = ast.parse(inspect.getsource(cls))
    body = tree.body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = " ".join(str(text.value.value).split())  # type: ignore[union-attr]
    return found


def type_text(hint: Any) -> str:
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    if "array" in text:
        return "Tokens"
    return str(text).replace("dpactors.serving.messages.", "").replace("typing.", "")


def record(cls: type, title: str) -> list[str]:
    docs = field_docs(cls)
    lines = [f"## {title}", "", inspect.getdoc(cls) or "", ""]
    if attrs.fields(cls):
        lines += ["| field | type | meaning |", "|---|---|---|"]
        for field in attrs.fields(cls):
            words = _annotation(cls, field.name).replace("|", "\\|")
            lines.append(f"| `{field.name}` | `{words}` | {docs.get(field.name, '')} |")
        lines.append("")
    return lines


def _annotation(cls: type, name: str) -> str:
    tree = ast.parse(inspect.getsource(cls))
    for node in tree.body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and node.target.id == name:  # type: ignore[union-attr]
            return ast.unparse(node.annotation)
    return ""


def messages() -> str:
    lines = [
        "# Messages",
        "",
        "Written from the code by `scripts/make_reference.py`. A message travels as the CBOR array of its tag and",
        "fields; a tag never changes its meaning. Records are part of messages and have no tag.",
        "",
    ]
    wanted = {module.__name__ for module in MODULES}
    for tag, cls in all_tags().items():
        if cls.__module__ in wanted:
            lines += record(cls, f"`{tag}` {cls.__name__}")
    lines += ["# Records", ""]
    for module in MODULES:
        for cls in vars(module).values():
            own = isinstance(cls, type) and cls.__module__ == module.__name__ and attrs.has(cls)
            if own and cls not in all_tags().values():
                lines += record(cls, cls.__name__)
    return "\n".join(lines).rstrip() + "\n"


def settings() -> str:
    lines = ["# Actors: settings and ports", "", "Written from the code by `scripts/make_reference.py`.", ""]
    for name, cls in CATALOGUE.items():
        lines += [f"## {name}", "", inspect.getdoc(cls) or "", "", *_settings(cls), *_ports(cls)]
    lines += ["## supervisor", "", inspect.getdoc(Supervising) or "", "", "It has no settings in a topology.", ""]
    lines += _ports(Supervising)
    return "\n".join(lines).rstrip() + "\n"


def _settings(cls: type[Actor]) -> list[str]:
    lines = ["| setting | type | unit | default | meaning |", "|---|---|---|---|---|"]
    for field in attrs.fields(cls.Settings):
        unit, meaning = field.metadata.get("unit", ""), field.metadata.get("meaning", "")
        default = f"`{field.default!r}`".replace("'", '"')
        lines.append(f"| `{field.name}` | {type_text(field.type)} | {unit} | {default} | {meaning} |")
    return [*lines, ""]


def _ports(cls: type[Actor]) -> list[str]:
    needs = {"always": "always", "group": "in or beside a group", "never": "optional"}
    lines = ["| port | direction | carries | delivery | wire |", "|---|---|---|---|---|"]
    for name, inlet in cls.inlets.items():
        carries = ", ".join(c.__name__ for c in inlet.carries)
        lines.append(f"| `{name}` | in | {carries} | | {needs[inlet.need]} |")
    for name, outlet in cls.outlets.items():
        carries = ", ".join(c.__name__ for c in outlet.carries)
        lines.append(f"| `{name}` | out, {outlet.fan} | {carries} | {outlet.delivery} | {needs[outlet.need]} |")
    return [*lines, ""]


def main() -> int:
    pages = {"messages.md": messages(), "settings.md": settings()}
    stale = [name for name, text in pages.items() if not _same(REFERENCE / name, text)]
    if "--check" in sys.argv:
        if stale:
            print(f"out of date: {', '.join(stale)}. Run scripts/make_reference.py", file=sys.stderr)
        return 1 if stale else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (REFERENCE / name).write_text(text)
    print(f"wrote {', '.join(pages)}")
    return 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
