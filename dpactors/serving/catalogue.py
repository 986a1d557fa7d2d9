"""Actor names as topology files write them, to classes."""

from dpactors.actor.actor import Actor
from dpactors.serving.client import Client
from dpactors.serving.coordinator import Coordinator
from dpactors.serving.engine import Engine
from dpactors.serving.ingress import Ingress

CATALOGUE: dict[str, type[Actor]] = {
    "client": Client,
    "coordinator": Coordinator,
    "engine": Engine,
    "ingress": Ingress,
}
