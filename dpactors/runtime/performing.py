"""Who performs the jobs of a process; torch and the web server are imported only where an actor needs them."""

import socket
from collections.abc import Mapping
from typing import Any

from dpactors.serving import jobs
from dpactors.serving.settings import EngineSettings, IngressSettings
from dpactors.topology.plan import ProcessPlan

ENGINE_JOBS = (jobs.LoadModel, jobs.JoinExchange, jobs.RunStep, jobs.AgreeIdle)


def performers_of(process: ProcessPlan, listen: Mapping[str, int]) -> dict[type, Any]:
    """Job classes to performers for the actors of a process; `listen` holds the inherited sockets by address."""
    performers: dict[type, Any] = {}
    for plan in process.actors:
        settings = plan.setup.settings
        if isinstance(settings, EngineSettings):
            from dpactors.engine.performer import EnginePerformer  # noqa: PLC0415 - torch, seconds and 200 MiB

            performers.update(dict.fromkeys(ENGINE_JOBS, EnginePerformer()))
        elif isinstance(settings, IngressSettings):
            from dpactors.http.server import HttpEdge  # noqa: PLC0415 - a web server only where one is wanted

            sockets = [socket.socket(fileno=descriptor) for descriptor in listen.values()]
            performers[jobs.ServeHttp] = HttpEdge(sockets or None)
        own = getattr(plan.actor, "make_performers", None)
        if own is not None:  # an operator's own actor brings its own
            performers.update(own())
    return performers
