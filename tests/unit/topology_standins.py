"""Small actors with the ports of the real ones, and a small file over them: topology is tested without serving."""

from typing import Any, TypeAlias

from attrs import field, frozen, validators

from dpactors.actor.actor import Actor, Effects
from dpactors.actor.address import Address
from dpactors.actor.port import inlet, outlet
from dpactors.serving.messages import (
    Abort,
    Dispatch,
    EngineReady,
    FirstRequest,
    Generate,
    LoadReport,
    LoadSnapshot,
    RanksReady,
    Reply,
    StartWave,
    StepOutputs,
    WaveComplete,
    WaveWanted,
)


def setting(default: Any, meaning: str, unit: str = "", check: Any = None) -> Any:
    return field(default=default, metadata={"meaning": meaning, "unit": unit}, validator=check)


@frozen
class DoorSettings:
    listen: str = setting(":8000", "address and port")
    model: str = setting("tiny", "whose tokenizer is used")


@frozen
class BalancerSettings:
    policy: str = setting("vllm", "how a rank is chosen", check=validators.in_(("vllm", "round_robin")))


@frozen
class WorkerSettings:
    model: str = setting("tiny", "checkpoint directory")
    threads: int = setting(1, "intra-op threads", "threads", validators.ge(1))
    retry_s: float = setting(0.1, "before a request is repeated", "s", validators.gt(0))
    eager: bool = setting(False, "run without compilation")
    extra_models: tuple[str, ...] = setting((), "further checkpoints")


class Door(Actor):
    Settings = DoorSettings
    requests = outlet(Generate, Abort)
    replies = inlet(Reply, RanksReady)

    def on_replies(self, message: Reply | RanksReady, sender: Address, now_s: float) -> Effects:
        return ()


class Balancer(Actor):
    Settings = BalancerSettings
    intake = inlet(Generate, Abort)
    replies = outlet(Reply, RanksReady, fan="each")
    requests = outlet(Dispatch, Abort)
    outputs = inlet(StepOutputs, EngineReady)
    snapshots = inlet(LoadSnapshot, need="group")
    waves = outlet(FirstRequest, need="group")

    def on_intake(self, message: Generate | Abort, sender: Address, now_s: float) -> Effects:
        return ()

    def on_outputs(self, message: StepOutputs | EngineReady, sender: Address, now_s: float) -> Effects:
        return ()

    def on_snapshots(self, message: LoadSnapshot, sender: Address, now_s: float) -> Effects:
        return ()


class Worker(Actor):
    Settings = WorkerSettings
    requests = inlet(Dispatch, Abort)
    outputs = outlet(StepOutputs, EngineReady)
    loads = outlet(LoadReport, delivery="latest", need="never")
    waves = outlet(WaveWanted, WaveComplete, need="group", fan="each")
    starts = inlet(StartWave, need="group")

    def on_requests(self, message: Dispatch | Abort, sender: Address, now_s: float) -> Effects:
        return ()

    def on_starts(self, message: StartWave, sender: Address, now_s: float) -> Effects:
        return ()


class Hub(Actor):
    loads = inlet(LoadReport, need="never")
    waves = inlet(FirstRequest, WaveWanted, WaveComplete, need="never")
    starts = outlet(StartWave, fan="each", need="never")
    snapshots = outlet(LoadSnapshot, fan="each", delivery="latest", need="never")

    def on_loads(self, message: LoadReport, sender: Address, now_s: float) -> Effects:
        return ()

    def on_waves(self, message: FirstRequest | WaveWanted | WaveComplete, sender: Address, now_s: float) -> Effects:
        return ()


Change: TypeAlias = tuple[str, str]
"""A text of the file and what stands there instead."""

STANDINS: dict[str, type[Actor]] = {"ingress": Door, "client": Balancer, "engine": Worker, "coordinator": Hub}

FILE = "small.toml"
SMALL = """\
name = "small"
hosts = { node0 = "127.0.0.1", node1 = "127.0.0.2" }

[roles.coordinator]
actor = "coordinator"
place = { node0 = 1 }

[roles.engine]
actor = "engine"
place = { node0 = 2, node1 = 2 }
settings = { model = "tiny", threads = 2 }

[roles.frontend]
actor = ["ingress", "client"]
place = { node0 = 1, node1 = 1 }
settings = { model = "tiny", policy = "vllm", listen = ":8000" }

[[groups]]
role = "engine"
kind = "expert-parallel"

[[wires]]
from = "ingress.requests"
to = "client.intake"

[[wires]]
from = "client.replies"
to = "ingress.replies"

[[wires]]
from = "client.requests"
to = "engine.requests"
reach = "same-host"

[[wires]]
from = "engine.outputs"
to = "client.outputs"
reach = "same-host"

[[wires]]
from = "client.waves"
to = "coordinator.waves"

[[wires]]
from = "engine.waves"
to = "coordinator.waves"

[[wires]]
from = "coordinator.starts"
to = "engine.starts"

[[wires]]
from = "coordinator.snapshots"
to = "client.snapshots"

[[wires]]
from = "engine.loads"
to = "coordinator.loads"
"""
"""A clean file with one of everything."""


def changed(*changes: Change, text: str = SMALL) -> str:
    """SMALL with each first text replaced by the second; each must occur."""
    for old, new in changes:
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new, 1)
    return text
