"""What does the code promise? Writes docs/reference/{messages,settings}.md from it; --check only compares.

Field docs are the string literals under the fields, read from the source; settings carry theirs as metadata.

    .venv/bin/python scripts/make_reference.py [--check]
"""

import ast
import importlib
import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from dpactors.actor.actor import Actor
from dpactors.message.message import all_tags, tag_of
from dpactors.runtime.supervising import Supervising
from dpactors.serving.catalogue import CATALOGUE
from dpactors.topology.errors import shown
from dpactors.topology.settings import Setting, settings_of
from dpactors.topology.values import type_text

REPOSITORY = Path(__file__).parents[1]
REFERENCE = REPOSITORY / "docs" / "reference"
ACTORS: dict[str, type[Actor]] = {**CATALOGUE, "supervisor": Supervising}
NEEDS = {"always": "always", "group": "in or beside a group", "never": "optional"}
BOUNDS = {">=": "from", ">": "above", "<=": "up to", "<": "below"}


def modules() -> list[Any]:
    """Every module of the package that has messages."""
    texts = {path: path.read_text() for path in sorted((REPOSITORY / "dpactors").rglob("*.py"))}
    found = [path.relative_to(REPOSITORY).with_suffix("") for path, text in texts.items() if "\n@message(" in text]
    return [importlib.import_module(".".join(path.parts)) for path in found]


# ------------------------------------------------------------- messages


def fields_of(cls: type) -> Iterator[tuple[str, str, str]]:
    """Name, annotation and doc of each field, as the source has them."""
    body = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
    for field, after in itertools.pairwise([*body, ast.Pass()]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            doc = " ".join(str(after.value.value).split()) if said else ""
            yield field.target.id, ast.unparse(field.annotation), doc


def record(cls: type, title: str) -> list[str]:
    lines = [f"## {title}", "", cell(inspect.getdoc(cls) or ""), ""]
    rows = list(fields_of(cls))
    if rows:
        lines += ["| field | type | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | `{cell(hint)}` | {cell(doc)} |" for name, hint, doc in rows]
        lines.append("")
    return lines


def title_of(cls: type) -> str:
    return f"`{tag_of(cls)}` {cls.__name__}"


def link(cls: type) -> str:
    """A link from a page beside messages.md to a message, by the anchor that its heading gets."""
    anchor = "".join(c for c in title_of(cls).lower() if c.isalnum() or c in "_- ").replace(" ", "-")
    return f"[{cls.__name__}](messages.md#{anchor})"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def doors(cls: type, direction: str) -> str:
    """The ports of all actors that carry a message."""
    names = [
        f"`{name}.{port.name}`"
        for name, actor in ACTORS.items()
        for port in (actor.outlets if direction == "out" else actor.inlets).values()
        if cls in port.carries
    ]
    return ", ".join(names)


def messages() -> str:
    found = modules()
    wanted = {module.__name__ for module in found}
    classes = [cls for cls in all_tags().values() if cls.__module__ in wanted]
    lines = [
        "# Messages",
        "",
        "Written from the code by `scripts/make_reference.py`. A message travels as the CBOR array of its tag and",
        "fields; a tag never changes its meaning. Records are part of messages and have no tag. Where no outlet is",
        "named, what hosts the actors sends it: a process to its supervisor, or the control socket for a verb.",
        "",
        "| message | leaves by | comes in by |",
        "|---|---|---|",
    ]
    lines += [
        f"| {link(cls).replace('messages.md', '')} | {doors(cls, 'out')} | {doors(cls, 'in')} |" for cls in classes
    ]
    lines.append("")
    for cls in classes:
        lines += record(cls, title_of(cls))
    lines += ["# Records", ""]
    for module in found:
        for cls in vars(module).values():
            own = isinstance(cls, type) and cls.__module__ == module.__name__ and attrs.has(cls)
            if own and cls not in classes:
                lines += record(cls, cls.__name__)
    return "\n".join(lines).rstrip() + "\n"


# ------------------------------------------------------------- settings and ports


def settings() -> str:
    lines = [
        "# Actors: settings and ports",
        "",
        "Written from the code by `scripts/make_reference.py`. Settings stand in `[roles.X] settings` of a",
        "[topology](topology.md); a role of several actors takes the settings of all of them.",
        "",
        "An outlet of fan `one` names the peer of each message, one of fan `each` sends to all. Delivery `reliable` is",
        "in order and exactly once, or reported; of `latest` only the newest value counts. The last column says when",
        "`check` insists on a wire.",
        "",
    ]
    for name, actor in ACTORS.items():
        own = _settings(actor) if name in CATALOGUE else ["It is no actor of a topology and has no settings there.", ""]
        lines += [f"## {name}", "", inspect.getdoc(actor) or "", "", *own, *_ports(actor)]
    return "\n".join(lines).rstrip() + "\n"


def _settings(actor: type[Actor]) -> list[str]:
    lines = ["| setting | type | unit | default | meaning |", "|---|---|---|---|---|"]
    for one in settings_of(actor).values():
        default = "required" if one.default is attrs.NOTHING else f"`{shown(one.default)}`"
        meaning = cell(one.meaning + limits(actor, one))
        lines.append(f"| `{one.key}` | {cell(type_text(one.type))} | {one.unit} | {default} | {meaning} |")
    return [*lines, ""]


def limits(actor: type[Actor], setting: Setting) -> str:
    """What a validator of attrs lets pass, in words."""
    validator = getattr(attrs.fields_dict(actor.Settings)[setting.key], "validator", None)
    if options := getattr(validator, "options", None):
        return f" ({', '.join(f'`{option}`' for option in options)})"
    if (bound := getattr(validator, "bound", None)) is not None:
        return f" ({BOUNDS[validator.compare_op]} {bound})"
    return ""


def _ports(actor: type[Actor]) -> list[str]:
    lines = ["| port | direction | carries | delivery | wire |", "|---|---|---|---|---|"]
    for name, inlet in actor.inlets.items():
        lines.append(f"| `{name}` | in | {', '.join(map(link, inlet.carries))} | | {NEEDS[inlet.need]} |")
    for name, outlet in actor.outlets.items():
        carries = ", ".join(map(link, outlet.carries))
        lines.append(f"| `{name}` | out, {outlet.fan} | {carries} | {outlet.delivery} | {NEEDS[outlet.need]} |")
    return [*lines, ""]


# -------------------------------------------------------------


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
