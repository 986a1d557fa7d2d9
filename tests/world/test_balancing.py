"""Policies at work: the client and its ranks in virtual time."""

import pytest

from dpactors.actor.address import Address
from dpactors.actor.effects import JobDone, Note, Received, Send
from dpactors.serving.jobs import StepResult
from dpactors.serving.messages import LoadReport, LoadSnapshot, RankLoad, StepOutputs
from dpactors.serving.policy.registry import POLICIES
from dpactors.simulation.weather import Weather
from tests.world.town import Town

CLIENT = Address("client", 0)


class Watch:
    """A town whose client's choices are kept as it told them."""

    def __init__(self, policy: str, *overrides: str, topology: str = "sglang_dp", ranks: int = 2) -> None:
        self.chosen: list[Note] = []
        self.loads: list[RankLoad] = []
        """What ranks told the coordinator."""
        settings = (f'roles.frontend.settings.policy="{policy}"', f"roles.engine.place.node0={ranks}", *overrides)
        self.town = Town(topology, *settings)
        self.town.world.observers.append(self._look)
        self.town.warm()

    @property
    def ranks(self) -> list[int]:
        return [note.fields["rank"] for note in self.chosen]

    def pause(self, seconds: float) -> None:
        self.town.world.run(self.town.world.now_s + seconds)

    def _look(self, target: Address, event: object, effects: list[object]) -> None:
        self.chosen += [one for one in effects if isinstance(one, Note) and one.event == "client.chose"]
        sent = [one.message for one in effects if isinstance(one, Send)]
        self.loads += [message.load for message in sent if isinstance(message, LoadReport)]


@pytest.mark.parametrize("topology", ["sglang_dp", "internal_1node"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_and_leaves_no_booking(policy: str, topology: str) -> None:
    watch = Watch(policy, topology=topology)
    for n in range(12):
        watch.town.ask(prompt=5 + 90 * (n % 3), max_tokens=3 + n)
        watch.pause(0.004)
    watch.town.run_until_served()
    watch.town.at_rest()

    assert len(watch.chosen) == 12
    load = watch.town.world.actor(CLIENT).load
    assert [(view.unseen, view.requests, view.tokens) for view in load.order] == [(0, 0, 0)] * 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_rank_that_dies_is_chosen_no_more_until_it_is_back(policy: str) -> None:
    watch = Watch(policy, ranks=3)
    victim = watch.town.engines[1]
    for _ in range(6):
        watch.town.ask(max_tokens=40)
    watch.pause(0.05)
    watch.town.world.kill(victim)
    watch.pause(0.01)
    lost = len(watch.chosen)
    for _ in range(9):
        watch.town.ask(max_tokens=5)
        watch.pause(0.03)
    back = len(watch.chosen)
    assert back - lost == 9
    assert 1 not in watch.ranks[lost:back]
    watch.town.world.restart(victim)
    watch.pause(2.0)
    for n in range(24):
        watch.town.ask(prompt=2 + n, max_tokens=5)
    watch.town.run_until_served()

    assert 1 in watch.ranks[back:]


def test_short_prompts_go_round_a_long_one() -> None:
    """1800 tokens take 0.19 s; by requests the ranks look equal and half of the short ones would queue behind."""
    waits: dict[str, list[float]] = {}
    for policy in ("least_work", "vllm"):
        watch = Watch(policy)
        for size in (600, 600, 8, 8):  # so that each rank knows its pace
            watch.town.ask(prompt=size, max_tokens=12)
        watch.town.run_until_served()
        watch.pause(1.0)
        watch.town.ask(prompt=1800, max_tokens=2)
        watch.pause(0.001)
        first = len(watch.chosen) - 1
        for _ in range(4):
            watch.town.ask(prompt=8, max_tokens=1)
        watch.town.run_until_served()
        waits[policy] = [rank == watch.ranks[first] for rank in watch.ranks[first + 1 :]]

    assert waits == {"least_work": [False] * 4, "vllm": [False, True, False, True]}


def test_a_pinned_request_is_no_choice_and_counts_all_the_same() -> None:
    watch = Watch("least_work")
    watch.town.ask(prompt=1500, rank=0)
    watch.pause(0.001)
    for _ in range(3):
        watch.town.ask(prompt=8, max_tokens=1)
        watch.pause(0.02)

    assert watch.ranks == [1, 1, 1]


def test_a_choice_is_told_with_its_reason() -> None:
    watch = Watch("vllm", ranks=3)
    watch.town.ask(max_tokens=50)
    watch.pause(0.1)
    watch.town.ask()
    watch.pause(0.1)

    told = watch.chosen[1].fields
    assert told["request"] == "r2"
    assert (told["policy"], told["rank"], told["score"], told["of"]) == ("vllm", 1, 0, 3)
    assert str(told["candidates"]) == "1:0 2:0 0:1"
    assert told["reason"] == "lightest by vLLM's score"
    assert 0.0 <= told["age_s"] <= 0.3
    assert watch.chosen[1].level == "debug"


def test_a_choice_among_many_names_the_best_few() -> None:
    watch = Watch("vllm", ranks=20)
    watch.town.ask()
    watch.pause(0.1)

    (note,) = watch.chosen
    assert (note.fields["of"], len(str(note.fields["candidates"]).split())) == (20, 8)


def test_a_load_s_age_is_true_to_within_the_way_it_came() -> None:
    """However long it lay at the coordinator, the client knows when it was true; only the two hops are left out."""
    weather = Weather()
    town = Town("dense_dp2", weather=weather)
    made: dict[tuple[int, int], float] = {}
    off: list[float] = []

    def look(target: Address, event: object, effects: list[object]) -> None:
        for one in effects:
            if isinstance(one, Send) and isinstance(one.message, LoadReport | StepOutputs):
                made[one.message.load.rank, one.message.load.report] = town.world.now_s
        if isinstance(event, Received) and isinstance(event.message, LoadSnapshot):
            views = town.world.actor(target).load.order
            off.extend(view.heard_s - made[view.rank, view.report.report] for view in views)

    town.world.observers.append(look)
    town.warm()
    town.world.run(town.world.now_s + 0.5)
    off.clear()
    for n in range(10):
        town.ask(max_tokens=20, prompt=50 * n + 1)
        town.world.run(town.world.now_s + 0.08)

    assert off
    assert min(off) >= 0.0
    assert max(off) <= 2 * weather.delay_s[1]


def test_a_request_that_comes_into_a_dummy_step_is_foretold_behind_it() -> None:
    """A rank without work steps along with its group; what arrives meanwhile begins with the step after."""
    watch = Watch("least_work", topology="internal_1node")
    for size in (400, 8, 900):
        for rank in (0, 1):
            watch.town.ask(prompt=size, max_tokens=10, rank=rank)
        watch.pause(1.0)
    watch.town.ask(prompt=8, max_tokens=60, rank=0)
    watch.pause(0.1)
    watch.town.ask(prompt=1200, max_tokens=1, rank=1)
    watch.pause(0.004)
    (load,) = [load for load in watch.loads if load.rank == 1 and load.waiting][-1:]

    assert (load.step_tokens, load.pending_tokens) == (1200, 0)
    assert 0.13 <= load.step_left_s <= 0.15  # its own step of 0.13 s, behind the rest of a dummy one of 0.01 s


def test_a_rank_foretells_the_end_of_its_prefill() -> None:
    watch = Watch("least_work", ranks=1)
    for size in (400, 8, 900):
        watch.town.ask(prompt=size, max_tokens=10)
        watch.pause(1.0)
    world = watch.town.world
    foretold: list[float] = []
    ended: list[float] = []

    def look(target: Address, event: object, effects: list[object]) -> None:
        if isinstance(event, JobDone) and isinstance(event.result, StepResult):
            ended.append(world.now_s)
        loads = [one.message.load for one in effects if isinstance(one, Send) and isinstance(one.message, LoadReport)]
        foretold.extend(world.now_s + load.step_left_s for load in loads if load.step_tokens > 1000)

    world.observers.append(look)
    watch.town.ask(prompt=1500, max_tokens=3)
    watch.town.run_until_served()

    assert len(foretold) > 1  # at its start, then with the pulse
    assert foretold == pytest.approx([ended[0]] * len(foretold), abs=0.02)
