"""Shipped topologies in virtual time, with requests coming in at their front doors."""

from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dpactors.actor.address import Address
from dpactors.actor.effects import Received
from dpactors.serving.catalogue import CATALOGUE
from dpactors.serving.jobs import ClientGone, StreamWrite, Submitted
from dpactors.serving.messages import Generate, Sampling
from dpactors.simulation.collective import Latency
from dpactors.simulation.invariants import Invariants, assert_rest
from dpactors.simulation.weather import Weather
from dpactors.simulation.world import World
from dpactors.topology.document import read_topology
from dpactors.topology.graph import build
from dpactors.topology.plan import Plan, Route, make_plan

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
NAMES = ("internal_1node", "internal_2node", "hybrid_2node", "external_4rank", "dense_dp2", "sglang_dp")
GROUPED = NAMES[:4]


def plan_of(name: str, *overrides: str) -> Plan:
    document = read_topology(TOPOLOGIES / f"{name}.toml", overrides, {"DENSE_MODEL": "tiny-moe"})
    return make_plan(document, build(document, CATALOGUE))


class Town:
    """A running world and the requests asked of it."""

    def __init__(
        self, name: str, *overrides: str, seed: int = 0, weather: Weather | None = None, latency: Latency | None = None
    ) -> None:
        self.plan = plan_of(name, *overrides)
        self.world = World(self.plan, seed, weather, latency)
        Invariants(self.world)  # from now on, after every event
        self.asked: dict[int, Generate] = {}
        self._streams = 0
        self.ingresses = self._of("ingress")
        self.engines = self._of("engine")

    def warm(self) -> "Town":
        """Run until every ingress knows that all its ranks are ready."""
        self.world.run(
            30.0,
            lambda: all(self.world.actor(i).ranks.ready == self.world.actor(i).ranks.all != () for i in self.ingresses),
        )
        self.world.run(self.world.now_s + 1.0)
        return self

    def ask(self, ingress: int = 0, max_tokens: int = 5, prompt: int = 8, rank: int | None = None) -> int:
        """One request at a front door, now; returns its stream."""
        self._streams += 1
        stream = self._streams
        sampling = Sampling(0.0, 1.0, 0, stream, array("i"), ignore_eos=True, min_tokens=0)
        generate = Generate(f"r{stream}", array("i", range(3, 3 + prompt)), max_tokens, sampling, rank)
        self.asked[stream] = generate
        self.world.say(self.ingresses[ingress], "http", Submitted(stream, generate))
        return stream

    def leave(self, stream: int, ingress: int = 0) -> None:
        self.world.say(self.ingresses[ingress], "http", ClientGone(stream))

    def ends(self, stream: int) -> list[StreamWrite]:
        return [w for w in self.world.written.get(stream, []) if w.finish is not None]

    def tokens(self, stream: int) -> list[int]:
        return [t for w in self.world.written.get(stream, []) for t in w.tokens]

    def served(self, stream: int) -> bool:
        ends = self.ends(stream)
        full = len(self.tokens(stream)) == self.asked[stream].max_tokens
        return len(ends) == 1 and ends[0].finish == "length" and full

    def run_until_served(self, limit_s: float = 30.0) -> None:
        self.world.run(self.world.now_s + limit_s, lambda: all(self.ends(s) for s in self.asked))
        assert all(self.served(s) for s in self.asked), {s: self.ends(s) for s in self.asked}

    def at_rest(self) -> None:
        """Run on, then nobody has work, every rank sleeps in the same wave and nobody waits in a collective."""
        self.world.run(self.world.now_s + 2.0)
        assert_rest(self.world)

    # ------------------------------------------------------------- a network with a will of its own

    def take_over(self, kind: type, to: Address | None, act: Callable[[Route, object], bool]) -> None:
        """Let `act` see each message of a kind (to one actor); where it says True the message goes no further."""
        carry = self.world._carry

        def carried(route: Route, message: object) -> None:
            if not (isinstance(message, kind) and to in (None, route.target) and act(route, message)):
                carry(route, message)

        self.world._carry = carried

    def hold(self, kind: type, to: Address | None = None) -> Callable[[], None]:
        """Hold messages of a kind, and what its sender says behind them, until the call that is returned."""
        held: list[tuple[Route, object]] = []
        carry, holding = self.world._carry, True

        def carried(route: Route, message: object) -> None:
            wanted = isinstance(message, kind) and to in (None, route.target)
            behind = any((one.source, one.target) == (route.source, route.target) for one, _ in held)
            if holding and (wanted or behind):
                held.append((route, message))
            else:
                carry(route, message)

        def release() -> None:
            nonlocal holding
            holding = False
            for route, message in held:
                carry(route, message)

        self.world._carry = carried
        return release

    def delay(self, kind: type, seconds: float) -> None:
        """Messages of a kind arrive so much later, and in order."""

        def late(route: Route, message: object) -> bool:
            self.world._later(seconds, route.target, Received(route.inlet, route.source, message))
            return True

        self.take_over(kind, None, late)

    def tell(self, target: Address, inlet: str, sender: Address, message: object) -> None:
        """A message arrives now that nobody has sent."""
        self.world._at(self.world.now_s, target, Received(inlet, sender, message))

    def count(self, kind: type) -> Counter[Address]:
        """From now on, how many messages of a kind were sent to whom."""
        counted: Counter[Address] = Counter()

        def seen(route: Route, message: object) -> bool:
            counted[route.target] += 1
            return False

        self.take_over(kind, None, seen)
        return counted

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now_s + seconds)

    def waves(self) -> list[int]:
        return [self.world.actor(e).wave.wave for e in self.engines]

    def steps(self) -> list[int]:
        return [self.world.engines.steps.get(e, 0) for e in self.engines]

    def _of(self, role: str) -> list[Address]:
        return sorted(
            one.setup.address for p in self.plan.processes for one in p.actors if one.setup.address.role == role
        )
