"""dpactors: data-parallel LLM serving as typed actors. This is the public face; nothing else is promised."""

from dpactors.actor.actor import Actor
from dpactors.actor.port import inlet, outlet
from dpactors.message.message import message

__version__ = "0.1.0"

__all__ = ["Actor", "__version__", "inlet", "message", "outlet"]
