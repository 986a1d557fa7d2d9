"""Actors by ``package.module:Class``, beside those of a catalogue: whoever writes actors names them in a topology."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

from dpactors.actor.actor import Actor
from dpactors.topology.errors import nearest

FORM = "package.module:Class"


class Named(Mapping[str, type[Actor]]):
    """A catalogue that imports what it is asked for by module and class; what cannot be had is said by `why_not`.

    Importing runs the module, so a topology is to be trusted as much as the code it names.
    """

    def __init__(self, catalogue: Mapping[str, type[Actor]]) -> None:
        self._catalogue = catalogue
        self._found: dict[str, type[Actor]] = {}
        self._missing: dict[str, tuple[str, str]] = {}

    def __getitem__(self, name: str) -> type[Actor]:
        if ":" not in name:
            return self._catalogue[name]
        if name not in self._found and name not in self._missing:
            self._look_for(name)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalogue)

    def __len__(self) -> int:
        return len(self._catalogue)

    def why_not(self, name: str) -> tuple[str, str]:
        """What is wrong with a name that is not here, and its mend."""
        return self._missing.get(name) or (f"there is no actor {name}", nearest(name, self._catalogue))

    def _look_for(self, name: str) -> None:
        module_name, _, class_name = name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            beside = "" if error.name == module_name else f", which {module_name} imports,"
            wrong = f"there is no module {error.name}{beside} in the folder of this file or among installed packages"
            self._missing[name] = wrong, f"Write {FORM}; a module of your own lies beside this file, or is installed"
            return
        except Exception as error:  # noqa: BLE001 - the module is the user's: whatever it raises is theirs to see
            what = " ".join(f"{type(error).__name__}: {error}".split())
            self._missing[name] = f"{module_name} cannot be imported: {what}", f"Mend {module_name}"
            return
        found: object = getattr(module, class_name, None)
        if _is_actor(found):
            self._found[name] = found
        elif found is None:
            actors = [one for one, value in vars(module).items() if _is_actor(value) and value is not Actor]
            self._missing[name] = f"{module_name} has no {class_name}", nearest(class_name, actors)
        else:
            wrong = f"{module_name}.{class_name} is {type(found).__name__}, not a class of actors"
            self._missing[name] = wrong, "Derive it from dpactors.Actor"


def _is_actor(value: object) -> TypeGuard[type[Actor]]:
    return isinstance(value, type) and issubclass(value, Actor)


def make_importable(folder: Path) -> None:
    """Let modules of this folder be imported, after installed ones: a file of a common name shadows nobody's."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
