"""dpactors: data-parallel LLM serving as typed actors. This is the public face; nothing else is promised."""

from dpactors.actor.actor import Actor, Effects
from dpactors.actor.address import Address
from dpactors.actor.effects import CancelTimer, Phase, SetTimer, Stop, Undelivered, note
from dpactors.actor.port import inlet, outlet
from dpactors.message.message import Tokens, message, tokens

__version__ = "0.1.0"

__all__ = [
    "Actor",
    "Address",
    "CancelTimer",
    "Effects",
    "Phase",
    "SetTimer",
    "Stop",
    "Tokens",
    "Undelivered",
    "__version__",
    "inlet",
    "message",
    "note",
    "outlet",
    "tokens",
]
