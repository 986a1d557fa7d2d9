"""The verb that checks protocols exhaustively: explore."""

import sys
from typing import TYPE_CHECKING

from dpactors.cli.errors import FAILED, Refusal

if TYPE_CHECKING:
    from dpactors.simulation.explore import Explored

MAX_STATES = 1_000_000
"""Some minutes, and one or two gigabytes."""


def explore(model: str = "", *, max_states: int = MAX_STATES) -> int:
    """Check a protocol model in every order of events; prints the shortest story that goes wrong, if there is one.

    Example: dpactors explore wave

    Parameters
    ----------
    model
        A model's name; an unknown one lists them.
    max_states
        Stop after so many states; what they show is told, and that more is unknown.
    """
    from dpactors.simulation.explore import explore as exhaust
    from dpactors.simulation.models.catalogue import MODELS

    if max_states < 1:
        raise Refusal(f"explore: --max-states {max_states} leaves nothing to look at. Give at least 1.")
    if model not in MODELS:
        width = max(map(len, MODELS))
        listed = "\n".join(f"  {name:{width}}  {one.shows}" for name, one in MODELS.items())
        raise Refusal(f"explore: {f'no model {model!r}' if model else 'name a model'}. Models:\n{listed}")
    made = MODELS[model].make()
    print(f"{model}: {made.about}", flush=True)
    found = exhaust(made, max_states, _progress if sys.stderr.isatty() else None)
    print(f"{found.states:,} states, {found.moves:,} moves between them, frontier {found.frontier:,}")
    if found.violation:
        _tell(found)
        return FAILED
    if found.frontier:
        print(f"Nothing wrong so far, but {found.frontier:,} states were not looked into. Raise --max-states.")
        return FAILED
    print("Every reachable state is sound, and from each of them the model can still come to its goal.")
    return 0


def _tell(found: "Explored") -> None:
    states = f" ({found.stuck:,} such states; this one is nearest)" if found.stuck else ""
    print(f"\n{found.violation}{states}\n\nThe shortest way there:")
    for number, move in enumerate(found.story, 1):
        print(f"  {number:2}. {move}")
    print("\nHow things stand then:")
    for line in found.there:
        print(f"  {line}")


def _progress(states: int, frontier: int) -> None:
    print(f"{states:,} states, frontier {frontier:,}", file=sys.stderr)
