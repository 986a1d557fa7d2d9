"""What a supervisor hands to a process it starts, as JSON on its stdin."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import attrs
from attrs import frozen

from dpactors.topology.document import Document
from dpactors.topology.graph import Catalogue, build
from dpactors.topology.named import Named, make_importable
from dpactors.topology.plan import Plan, ProcessPlan, make_plan

CATALOGUE = "dpactors.serving.catalogue:CATALOGUE"
"""Where actor names are looked up unless an operator brings actors of their own."""


@frozen
class Boot:
    """Everything a process needs to know before its first event."""

    document: dict[str, Any]
    """``Document.to_dict()``: resolved, so that the environment of the child does not matter."""
    process: str
    incarnation: int
    run_dir: str
    links_dir: str
    """The short folder of the run's ipc sockets."""
    supervisor_endpoint: str
    supervisor_incarnation: int
    supervisor_pid: int
    listen: dict[str, int]
    """HTTP address of the plan -> inherited descriptor of its listening socket."""
    trace: bool
    log_level: str
    catalogue: str = CATALOGUE
    folder: str = ""
    """The topology file's folder, where modules of an operator's own actors may lie."""
    keys: str = ""
    """Folder of the CURVE keys, empty for none; the keys themselves stay there."""

    def to_json(self) -> bytes:
        """The bytes for the child's stdin."""
        return json.dumps(attrs.asdict(self, recurse=False)).encode()


def read_boot(data: bytes) -> Boot:
    """The Boot in `data`; raises ValueError that says what is wrong with it."""
    try:
        tree = json.loads(data)
    except ValueError as error:
        raise ValueError(f"no boot record on stdin: {error}") from error
    known = {field.name: field for field in attrs.fields(Boot)}
    if not isinstance(tree, dict):
        raise ValueError("no boot record on stdin: it is no table")
    given = cast("dict[str, Any]", tree)
    wanted = {name for name, field in known.items() if field.default is attrs.NOTHING}
    if wrong := (wanted - given.keys()) | (given.keys() - known.keys()):
        raise ValueError(f"a boot record of another version: {', '.join(sorted(wrong))}")
    return Boot(**given)


def load_catalogue(reference: str, folder: str = "") -> Catalogue:
    """The catalogue at ``package.module:NAME``, and any class by its name; raises ValueError where there is none.

    Classes are looked for in `folder` too, where one is given.
    """
    if folder:
        make_importable(Path(folder))
    module_name, colon, name = reference.partition(":")
    if not colon:
        raise ValueError(f"{reference} is no catalogue; the form is package.module:NAME")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no catalogue {reference}: {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{reference} is {type(found).__name__}, not a mapping of names to actor classes")
    return Named(cast("Catalogue", found))


def planned(document: Document, catalogue: Catalogue) -> Plan:
    """The plan of a checked document."""
    return make_plan(document, build(document, catalogue))


def process_of(plan: Plan, name: str) -> ProcessPlan:
    """One process of a plan; raises ValueError where it has none of that name."""
    for process in plan.processes:
        if process.name == name:
            return process
    raise ValueError(f"the topology {plan.name} has no process {name}")
