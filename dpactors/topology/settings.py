"""What ``settings`` of a role may hold: read from its actors' ``Settings`` classes, checked, built, explained."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast, get_type_hints

import attrs
from attrs import frozen

from dpactors.actor.actor import Actor
from dpactors.topology.document import Document, Role
from dpactors.topology.errors import Problem, nearest, shown
from dpactors.topology.keys import RENDEZVOUS, ROLE, SECURITY, Key
from dpactors.topology.lines import Path, dotted
from dpactors.topology.values import Misfit, fit, type_text, wanted_text


@frozen
class Setting:
    """One field of a ``Settings`` class."""

    key: str
    type: Any
    unit: str
    meaning: str
    default: Any
    """``attrs.NOTHING`` where a value must be given."""
    validate: Callable[[Any], None] | None
    """Raises ValueError or TypeError for a value that it refuses."""


@frozen
class Explained:
    """One row of ``check --explain``."""

    path: str
    """As ``--set`` takes it."""
    actor: str
    """Empty for a key of the topology itself."""
    type: str
    unit: str
    default: str
    value: str
    meaning: str
    origin: str
    """default, FILE:LINE, --set or environment NAME."""


def settings_of(actor: type[Actor]) -> dict[str, Setting]:
    """The settings of an actor class by key."""
    hints = get_type_hints(actor.Settings)
    fields: tuple[Any, ...] = attrs.fields(actor.Settings)
    return {
        field.name: Setting(
            key=field.name,
            type=hints.get(field.name, field.type),
            unit=field.metadata.get("unit", ""),
            meaning=field.metadata.get("meaning", ""),
            default=_default(field.default),
            validate=partial(field.validator, None, field) if field.validator else None,
        )
        for field in fields
    }


def make_settings(document: Document, role: Role, actor: type[Actor]) -> Any:
    """The ``Settings`` of one actor of `role`; on a document that ``check`` found clean this does not raise."""
    values = {
        key: fit(role.settings[key], setting.type, document.source.raw.get(_path(role, key)))
        for key, setting in settings_of(actor).items()
        if key in role.settings
    }
    return actor.Settings(**values)


def check_settings(document: Document, role: Role, actors: Iterable[type[Actor]]) -> list[Problem]:
    """Unknown keys, wrong types, refused values and missing ones of one role, each once."""
    classes = tuple(actors)
    problems: list[Problem] = []
    known: dict[str, Setting] = {}
    for actor in classes:
        known.update(settings_of(actor))
    for key, value in role.settings.items():
        path = _path(role, key)
        if key not in known:
            names = ", ".join(dict.fromkeys(role.actors))
            wrong = f"{names} has no setting {key}"
            problems.append(document.source.problem(path, wrong, nearest(key, known)))
        elif value is not None:
            raw = document.source.raw.get(path)
            problems.extend(
                document.source.problem(path, *fault)
                for fault in _faults(value, raw, (settings_of(actor).get(key) for actor in classes))
            )
    for key, setting in known.items():
        if setting.default is attrs.NOTHING and key not in role.settings:
            wrong = f"has no {key}, which {', '.join(role.actors)} needs"
            problems.append(document.source.problem((*role.path, "settings"), wrong, f"Add {key}: {setting.meaning}"))
    return problems or [fault for actor in classes for fault in _whole(document, role, actor)]


def explain(document: Document, catalogue: Mapping[str, type[Actor]]) -> list[Explained]:
    """Every setting of every role, then every key of roles and of the topology that has a default."""
    rows: list[Explained] = []
    for role in document.roles:
        for name in role.actors:
            if name in catalogue:
                rows.extend(_explained_settings(document, role, name, catalogue[name]))
        own = {"start_limit_s": role.start_limit_s, "cores": role.cores}
        rows.extend(_explained(document, (*role.path, key), ROLE[key], value) for key, value in own.items())
    rows.append(_explained(document, ("security", "keys"), SECURITY["keys"], document.keys or ""))
    rows.append(_explained(document, ("security", "insecure"), SECURITY["insecure"], document.insecure))
    rows.append(_explained(document, ("rendezvous", "port"), RENDEZVOUS["port"], document.rendezvous_port))
    return rows


def _explained_settings(document: Document, role: Role, name: str, actor: type[Actor]) -> list[Explained]:
    rows: list[Explained] = []
    for key, setting in settings_of(actor).items():
        path = _path(role, key)
        value = role.settings.get(key, setting.default)
        with suppress(Misfit):  # then explained as written; check refuses it
            value = fit(value, setting.type, document.source.raw.get(path))
        like = Key(setting.type, setting.meaning, setting.unit, setting.default)
        rows.append(_explained(document, path, like, value, name))
    return rows


def _explained(document: Document, path: Path, key: Key, value: Any, actor: str = "") -> Explained:
    default, origin = ("" if key.default is attrs.NOTHING else shown(key.default)), document.source.origin(path)
    value = "" if value is attrs.NOTHING else shown(value)
    return Explained(dotted(path), actor, type_text(key.type), key.unit, default, value, key.meaning, origin)


def _faults(value: Any, raw: str | None, settings: Iterable[Setting | None]) -> list[tuple[str, str]]:
    """What is wrong with one value and its mend, for each actor that takes it; the same fault only once."""
    faults: dict[tuple[str, str], None] = {}
    for setting in settings:
        if setting is None:
            continue
        unit = f" {setting.unit}" if setting.unit else ""
        default = "" if setting.default is attrs.NOTHING else f"; the default is {shown(setting.default)}{unit}"
        try:
            fitted = fit(value, setting.type, raw)
        except Misfit as misfit:
            want = f"{wanted_text(setting.type)}{f' of {setting.unit}' if setting.unit else ''}"
            faults[str(misfit), f"Give {want}: {setting.meaning}{default}"] = None
            continue
        refusal = _refusal(setting, fitted)
        if refusal is not None:
            faults[f"is {shown(fitted)}{unit}, but {refusal[0]}", f"{refusal[1]}: {setting.meaning}{default}"] = None
    return list(faults)


def _refusal(setting: Setting, value: Any) -> tuple[str, str] | None:
    """Why a validator refuses, and what to do about it."""
    if setting.validate is None:
        return None
    try:
        setting.validate(value)
    except (ValueError, TypeError) as error:
        text = str(error.args[0]) if error.args else "it is refused"
        options = error.args[2] if len(error.args) > 2 else None  # noqa: PLR2004 - (text, attribute, options, value)
        if isinstance(options, tuple | list | set | frozenset):
            words = [str(option) for option in cast("tuple[Any, ...]", options)]
            return "must be one of its known values", nearest(str(value), words)
        text = text.removeprefix(f"'{setting.key}' ").rsplit(": ", 1)[0]
        return text, "Give another value"
    return None


def _whole(document: Document, role: Role, actor: type[Actor]) -> list[Problem]:
    """Rules over several settings live in the class itself."""
    try:
        make_settings(document, role, actor)
    except (ValueError, TypeError) as error:
        text = " ".join(str(error).split())
        mend = "Change one of the settings that it names"
        return [document.source.problem((*role.path, "settings"), text, mend)]
    return []


def _path(role: Role, key: str) -> Path:
    return (*role.path, "settings", key)


def _default(default: Any) -> Any:
    factory = getattr(default, "factory", None)  # attrs.Factory
    return factory() if factory is not None else default
