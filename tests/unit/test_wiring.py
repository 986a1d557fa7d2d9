"""Links follow the directory: bind once, connect where a peer waits, drop what is gone."""

from dpactors.runtime.control import Endpoint, Entry
from dpactors.runtime.wiring import Wiring
from tests.world.town import plan_of


class FakeLinks:
    """Writes down what it is told; the real ones have tests of their own."""

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []

    def bind(self, peer: str, transport: str, host_address: str) -> str:
        self.log.append(("bind", peer, transport))
        return f"{transport}://{peer}"

    def connect(self, peer: str, endpoint: str, peer_incarnation: int) -> None:
        self.log.append(("connect", peer, endpoint, peer_incarnation))

    def drop(self, peer: str, reason: str, incarnation: int | None = None) -> None:
        self.log.append(("drop", peer, incarnation))


def entry(process: str, incarnation: int, state: str = "up", *peers: str) -> Entry:
    return Entry(
        process, incarnation, "node0", state, tuple(Endpoint(p, f"ipc://{process}.{incarnation}") for p in peers)
    )


def test_the_lower_name_binds_and_the_higher_connects() -> None:
    links = FakeLinks()
    wiring = Wiring("engine.0", plan_of("internal_1node"), links)
    wiring.bind()

    assert ("bind", "frontend.0", "ipc") in links.log
    assert [e.peer for e in wiring.endpoints()] == ["frontend.0"]
    wiring.learn([entry("coordinator.0", 5, "up", "engine.0")])
    assert links.log[-1] == ("connect", "coordinator.0", "ipc://coordinator.0.5", 5)


def test_the_same_word_twice_connects_once() -> None:
    links = FakeLinks()
    wiring = Wiring("engine.0", plan_of("internal_1node"), links)
    for _ in range(2):
        wiring.learn([entry("coordinator.0", 5, "up", "engine.0")])

    assert [one[0] for one in links.log] == ["connect"]


def test_a_new_incarnation_replaces_the_old_one_alone() -> None:
    links = FakeLinks()
    wiring = Wiring("engine.0", plan_of("internal_1node"), links)
    wiring.learn([entry("coordinator.0", 5, "up", "engine.0")])
    wiring.learn([entry("coordinator.0", 5, "down")])
    wiring.learn([entry("coordinator.0", 6, "up", "engine.0")])

    assert [one[:2] for one in links.log] == [
        ("connect", "coordinator.0"),
        ("drop", "coordinator.0"),
        ("connect", "coordinator.0"),
    ]
    assert links.log[1] == ("drop", "coordinator.0", 5)


def test_two_hosts_are_joined_over_tcp() -> None:
    links = FakeLinks()
    Wiring("coordinator.0", plan_of("hybrid_2node"), links).bind()

    assert ("bind", "engine.0", "ipc") in links.log
    assert ("bind", "engine.2", "tcp") in links.log
