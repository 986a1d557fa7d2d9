"""Two ends of a link in every kind of weather at random, over any number of incarnations."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dpactors.net.limits import LinkLimits
from dpactors.net.link import LinkMachine, LinkState
from dpactors.net.notices import Delivered, Undelivered
from tests.unit.link_pair import Count

SMALL = LinkLimits(
    window_messages=6, outbox_messages=12, batch_messages=3, ack_messages=2, latest_frames=3, window_bytes=400
)


class Weather(RuleBasedStateMachine):
    """Two names, any number of incarnations of each, and a network that loses, doubles and reorders frames."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.number = 0
        self.air: dict[str, list[bytes]] = {"a": [], "b": []}
        self.ends: dict[str, LinkMachine] = {}
        self.sent_by: dict[int, tuple[str, int]] = {}
        self.delivered: dict[int, tuple[str, int]] = {}
        self.returned: dict[int, bool] = {}
        self.last: dict[tuple[str, int, str, int], int] = {}
        self.newest: dict[tuple[str, int, str, int], int] = {}
        self.incarnations = {"a": 0, "b": 0}
        for name in "ab":
            self.start(name)

    def other(self, name: str) -> str:
        return "b" if name == "a" else "a"

    def start(self, name: str) -> None:
        self.incarnations[name] += 1
        self.ends[name] = LinkMachine(name, self.other(name), self.incarnations[name], "d", SMALL)
        self.note(name, self.ends[name].join(self.now_s))
        self.flush(name)

    def flush(self, name: str) -> None:
        self.air[self.other(name)] += self.ends[name].frames_to_send(self.now_s)

    def note(self, name: str, notices: Any) -> None:
        me = self.ends[name]
        for one in notices:
            if type(one) is Delivered and one.route == 1:
                key = (name, me.incarnation, one.peer, me.peer_incarnation or 0)
                assert one.message.number > self.newest.get(key, -1), "an older value after a newer one"
                self.newest[key] = one.message.number
            elif type(one) is Delivered:
                number = one.message.number
                assert number not in self.delivered, "delivered twice"
                assert self.returned.get(number, True), "delivered, though it was said that it cannot have run"
                assert self.sent_by[number] == (one.peer, me.peer_incarnation), "of an incarnation that is not the peer"
                self.delivered[number] = (name, me.incarnation)
                key = (name, me.incarnation, *self.sent_by[number])
                assert number > self.last.get(key, -1), "out of order"
                self.last[key] = number
            elif type(one) is Undelivered:
                number = one.message.number
                assert number not in self.returned, "handed back twice"
                assert one.may_have_run or number not in self.delivered
                self.returned[number] = one.may_have_run

    @rule(name=st.sampled_from("ab"), count=st.integers(1, 8))
    def send(self, name: str, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.sent_by[self.number] = (name, self.ends[name].incarnation)
            self.note(name, self.ends[name].send(0, "t", Count(self.number)))
        self.flush(name)

    @rule(name=st.sampled_from("ab"))
    def send_latest(self, name: str) -> None:
        self.number += 1
        self.note(name, self.ends[name].send(1, "t", Count(self.number), latest=True))
        self.flush(name)

    @rule(name=st.sampled_from("ab"), data=st.data())
    def arrive(self, name: str, data: st.DataObject) -> None:
        """A frame out of the air, any of them; it may stay there and come again."""
        air = self.air[name]
        if not air:
            return
        at = data.draw(st.integers(0, len(air) - 1))
        frame = air[at] if data.draw(st.booleans()) else air.pop(at)
        self.note(name, self.ends[name].receive(frame, self.now_s))
        self.flush(name)

    @rule(name=st.sampled_from("ab"))
    def arrive_in_order(self, name: str) -> None:
        air, self.air[name] = self.air[name], []
        for frame in air:
            self.note(name, self.ends[name].receive(frame, self.now_s))
        self.flush(name)

    @rule(name=st.sampled_from("ab"), data=st.data())
    def lose(self, name: str, data: st.DataObject) -> None:
        if self.air[name]:
            self.air[name].pop(data.draw(st.integers(0, len(self.air[name]) - 1)))

    @rule(seconds=st.sampled_from((0.01, 0.2, 0.6, 4.0)))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for name in "ab":
            self.note(name, self.ends[name].tick(self.now_s))
            self.flush(name)

    @rule(name=st.sampled_from("ab"))
    def restart(self, name: str) -> None:
        self.start(name)

    @precondition(lambda self: self.incarnations["a"] < 6)
    @rule(told=st.booleans())
    def kill_and_tell(self, told: bool) -> None:
        """The supervisor of b says that a ended, before or after its next incarnation speaks."""
        dead = self.ends["a"].incarnation
        if told:
            self.note("b", self.ends["b"].lost("killed", dead))
        self.start("a")
        if not told:
            self.note("b", self.ends["b"].lost("killed", dead))
        self.note("b", self.ends["b"].join(self.now_s, dead + 1))
        self.flush("b")

    @invariant()
    def bounded(self) -> None:
        for end in self.ends.values():
            assert end.unacknowledged <= SMALL.window_messages
            assert end.backlog <= SMALL.outbox_messages + SMALL.window_messages

    def heal(self) -> None:
        for _ in range(30):
            self.wait(0.2)
            for name in "ab":
                self.arrive_in_order(name)

    def teardown(self) -> None:
        """The network heals: every message of the living is then accounted for."""
        self.heal()
        a, b = self.ends["a"], self.ends["b"]
        assert a.state is b.state is LinkState.UP
        assert a.settled
        assert b.settled
        for name in "ab":
            self.send_latest(name)
            newest = self.number
            for air in self.air.values():
                air.clear()  # all of it is lost
            self.heal()
            reader = self.ends[self.other(name)]
            assert self.newest[reader.me, reader.incarnation, name, self.ends[name].incarnation] == newest
        for number, (name, incarnation) in self.sent_by.items():
            if incarnation == self.ends[name].incarnation:
                assert number in self.delivered or number in self.returned, f"message {number} vanished"


TestWeather = Weather.TestCase
TestWeather.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
