"""Actors of a few lines, and a supervisor over them: what processes do, without a model. Run as a module, it is an `up`."""

import asyncio
import sys
from pathlib import Path

from attrs import frozen

from dpactors.actor.actor import Actor, Effects
from dpactors.actor.address import Address
from dpactors.actor.effects import Phase, SetTimer, Stop
from dpactors.actor.port import inlet, outlet
from dpactors.message.message import message
from dpactors.runtime.boot import planned
from dpactors.runtime.logs import set_up_logs
from dpactors.runtime.machine import FrontDoors, own_hosts
from dpactors.runtime.rundir import RunDirHeld, open_run_dir
from dpactors.runtime.supervisor import Deployment, Supervisor
from dpactors.topology.check import checked_topology


@message("tiny.hello/1")
class Hello:
    number: int


@frozen
class GreeterSettings:
    fails_after_s: float = 0.0
    refuses: bool = False


class Greeter(Actor):
    """Says hello to each listener it meets; fails or refuses where it is told to."""

    Settings = GreeterSettings
    hellos = outlet(Hello, fan="each")

    def on_start(self, now_s: float) -> Effects:
        if self.setup.settings.refuses:
            yield Stop(2, "no such thing")
        elif self.setup.settings.fails_after_s:
            yield SetTimer("fail", self.setup.settings.fails_after_s)

    def on_timer(self, timer: str, now_s: float) -> Effects:
        raise RuntimeError("as it was told to")

    def on_peer_joined(self, peer: Address, incarnation: int, now_s: float) -> Effects:
        yield self.hellos.to(peer, Hello(incarnation % 1000))


@frozen
class ListenerSettings:
    waits_for_ever: bool = False


class Listener(Actor):
    """Is ready when it was greeted."""

    Settings = ListenerSettings
    hellos = inlet(Hello)
    heard = 0

    def on_start(self, now_s: float) -> Effects:
        yield Phase("starting", "listening", "a hello")

    def on_hellos(self, message: Hello, sender: Address, now_s: float) -> Effects:
        self.heard += 1
        if not self.setup.settings.waits_for_ever:
            yield Phase("ready")

    def status(self) -> dict[str, object]:
        return {"heard": self.heard}


CATALOGUE: dict[str, type[Actor]] = {"greeter": Greeter, "listener": Listener}

TOPOLOGY = """
name = "tiny"
hosts = { node0 = "127.0.0.1" }

[roles.greeter]
actor = "greeter"
place = { node0 = 1 }
settings = { SETTINGS }

[roles.listener]
actor = "listener"
place = { node0 = 2 }
start_limit_s = 20.0

[[wires]]
from = "greeter.hellos"
to = "listener.hellos"
"""


async def bring_up(file: str, run_dir: str) -> int:
    document = checked_topology(file, CATALOGUE)
    plan = planned(document, CATALOGUE)
    hosts = own_hosts(plan.hosts)
    try:
        run = open_run_dir(Path(run_dir))
    except RunDirHeld as held:
        sys.stderr.write(f"{held}\n")
        return 2
    set_up_logs("json", "info", also_to=run.log("supervisor"), process="supervisor")
    deployment = Deployment(document, plan, hosts, catalogue="tests.live.tiny:CATALOGUE")
    supervisor = Supervisor(deployment, run, FrontDoors(plan, hosts))
    stop = await supervisor.run()
    sys.stdout.write(f"{stop.reason}\n")
    return stop.code


if __name__ == "__main__":
    sys.exit(asyncio.run(bring_up(sys.argv[1], sys.argv[2])))
