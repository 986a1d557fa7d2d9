"""Every model by its name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import frozen

from dpactors.simulation.explore import Model
from dpactors.simulation.models import link
from dpactors.simulation.models.group import group_model
from dpactors.simulation.models.link import link_model
from dpactors.simulation.models.wave import Budget, Rules, wave_model


@frozen
class Entry:
    """A model that can be made, and what is expected of it."""

    shows: str
    """What its exploration shows, in one line."""
    make: Callable[[], Model[Any]]
    breaks: bool = False
    """It leaves out a repair on purpose, and a violation is what it shows."""


MODELS: Mapping[str, Entry] = {
    "wave": Entry(
        "a request, an abort, a refusal, a doubled FIRST_REQ and a doubled START, in any order",
        partial(wave_model, 2, 1, 1, Budget(requests=1, aborts=1, rejects=1, doubles=1, repeats=1)),
    ),
    "wave-two-clients": Entry(
        "two clients wake the group at once or late",
        partial(wave_model, 2, 2, 1, Budget(requests=2)),
    ),
    "wave-interval": Entry(
        "a vote at every second step, and an abort",
        partial(wave_model, 2, 1, 2, Budget(requests=1, aborts=1)),
    ),
    "wave-three-ranks": Entry(
        "three ranks, a request and an abort",
        partial(wave_model, 3, 1, 1, Budget(requests=1, aborts=1)),
    ),
    "wave-lossy": Entry(
        "any two control messages are lost",
        partial(wave_model, 2, 1, 1, Budget(requests=1, losses=2)),
    ),
    "wave-without-first-request": Entry(
        "clients never say FIRST_REQ: ranks that ask for a wave are enough",
        partial(wave_model, 2, 1, 2, Budget(requests=1, aborts=1), Rules(first_request=False)),
    ),
    "wave-without-repeats": Entry(
        "START is never repeated: enough while nothing is lost",
        partial(wave_model, 2, 1, 2, Budget(requests=1, aborts=1), Rules(retry=False)),
    ),
    "wave-without-wanted": Entry(
        "ranks with work never ask: a late request is stranded",
        partial(wave_model, 2, 1, 1, Budget(requests=2), Rules(wanted=False)),
        breaks=True,
    ),
    "wave-lossy-without-repeats": Entry(
        "START is never repeated and one is lost: a rank is stranded",
        partial(wave_model, 2, 1, 1, Budget(requests=1, losses=1), Rules(retry=False)),
        breaks=True,
    ),
    "wave-large": Entry(
        "two clients, two requests and an abort: about a minute",
        partial(wave_model, 2, 2, 1, Budget(requests=2, aborts=1)),
    ),
    "link": Entry(
        "three messages one way over lines that lose two frames and double one",
        partial(link_model, link.Budget((3, 0), losses=2, doubles=1)),
    ),
    "link-two-ways": Entry(
        "messages both ways over lines that lose a frame and double one",
        partial(link_model, link.Budget((2, 1), losses=1, doubles=1)),
    ),
    "link-restart": Entry(
        "the reader restarts, a frame is lost, a supervisor tells of it early, late or never",
        partial(link_model, link.Budget((2, 0), losses=1, restarts=(0, 1), words=1)),
    ),
    "link-writer-restart": Entry(
        "the writer restarts, a frame is lost and one is doubled",
        partial(link_model, link.Budget((2, 0), losses=1, doubles=1, restarts=(1, 0))),
    ),
    "link-large": Entry(
        "both ends restart, a supervisor tells of it, and a frame is lost: a minute",
        partial(link_model, link.Budget((2, 0), losses=1, restarts=(1, 1), words=1)),
    ),
    "group-start": Entry(
        "the coordinator and two ranks start in any order and meet",
        partial(group_model, 2, 0, 0, 0),
    ),
    "coordinator-restart": Entry(
        "the coordinator is killed at any moment of a request",
        partial(group_model, 2, 1, 0, 1),
    ),
    "rank-restart": Entry(
        "a rank is killed at any moment while the group sleeps, and meets the other in a new epoch",
        partial(group_model, 2, 0, 1, 0),
    ),
    "rank-and-coordinator-restart": Entry(
        "a rank and the coordinator are killed at any two moments while the group sleeps",
        partial(group_model, 2, 0, 1, 1),
    ),
    "group-start-large": Entry(
        "a request comes in while the group starts: half a minute",
        partial(group_model, 2, 1, 0, 0),
    ),
    "rank-restart-large": Entry(
        "a rank is killed at any moment of a request: millions of states, so --max-states cuts it",
        partial(group_model, 2, 1, 1, 0),
    ),
}
