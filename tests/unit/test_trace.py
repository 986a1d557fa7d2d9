"""A story is merged from the files of several processes and holds no word of a prompt."""

from array import array
from pathlib import Path

import pytest

from dpactors.actor.address import Address
from dpactors.actor.effects import JobSaid, Received, RunJob, Send
from dpactors.message.codec import encode
from dpactors.net import frames
from dpactors.runtime.flow import FRAME_BYTES_KEPT, FlowRecorder, about
from dpactors.runtime.trace import Follower, TraceFile, as_text, read_story
from dpactors.serving.jobs import RunStep, Submitted
from dpactors.serving.messages import (
    Abort,
    Dispatch,
    Generate,
    GroupKey,
    Reply,
    RequestOutput,
    Sampling,
    StartWave,
    StepOutputs,
)
from dpactors.topology.plan import Route
from tests.loads import rank_load

GENERATE = Generate("r1", array("i", [918273645, 918273646]), 5, Sampling(0.0, 1.0, 0, 1, array("i"), False, 0), None)
OUTPUT = RequestOutput("r1", 0, array("i", [918273647]), "length", None, None, 200, 0)
LOAD = rank_load(0, wave=3, step=4, running=1, kv_used=0.5)
CLIENT, ENGINE, COORDINATOR = Address("client", 0), Address("engine", 0), Address("coordinator", 0)


def test_what_a_message_is_about() -> None:
    assert about(GENERATE) == ("r1",)
    assert about(Dispatch(GENERATE, 1, 1, False, array("i"))) == ("r1",)
    assert about(Submitted(1, GENERATE)) == ("r1",)
    assert about(StepOutputs(LOAD, (OUTPUT, OUTPUT))) == ("r1", "r1")
    assert about(Reply(0, 1, OUTPUT)) == ("r1",)
    assert about(Abort(("a", "b"))) == ("a", "b")
    assert about(StartWave(1)) == ()


def recorders(tmp_path: Path) -> dict[str, TraceFile]:
    return {
        name: TraceFile(tmp_path / "traces" / f"{name}.jsonl") for name in ("frontend.0", "engine.0", "coordinator.0")
    }


def record(tmp_path: Path) -> None:
    files = recorders(tmp_path)
    flows = {name: FlowRecorder(name) for name in files}
    flows["frontend.0"].event(Address("ingress", 0), JobSaid("http", Submitted(1, GENERATE)), "r1")
    flows["frontend.0"].send(CLIENT, Send("requests", Dispatch(GENERATE, 3, 1, True, array("i")), ENGINE), ENGINE, "r1")
    flows["coordinator.0"].send(COORDINATOR, Send("starts", StartWave(3), ENGINE), ENGINE, "other")
    flows["engine.0"].event(ENGINE, Received("starts", COORDINATOR, StartWave(3)), "other")
    flows["engine.0"].job(
        ENGINE, RunJob("step", RunStep(array("i", [918273645]), array("i", [0]), array("i", [0]), ())), "x"
    )
    flows["engine.0"].send(ENGINE, Send("outputs", StepOutputs(LOAD, (OUTPUT,)), CLIENT), CLIENT, "x")
    flows["frontend.0"].event(CLIENT, Received("outputs", ENGINE, StepOutputs(LOAD, (OUTPUT,))), "x")
    flows["engine.0"].send(ENGINE, Send("outputs", StepOutputs(LOAD, ()), CLIENT), CLIENT, "later, of no interest")
    for name, file in files.items():
        file.write(flows[name].take(60.0))
        file.close()


def test_a_story_is_in_order_and_spans_processes(tmp_path: Path) -> None:
    record(tmp_path)

    story = read_story(tmp_path, "r1")

    assert [one["what"] for one in story] == [
        "Submitted",
        "Dispatch",
        "StartWave",
        "StartWave",
        "RunStep",
        "StepOutputs",
        "StepOutputs",
    ]
    assert {one["process"] for one in story} == {"frontend.0", "engine.0", "coordinator.0"}
    assert story[-1]["finish"] == "length"
    assert "starts RunStep" in as_text(story)


def test_no_prompt_and_no_output_is_written_down(tmp_path: Path) -> None:
    record(tmp_path)

    for path in (tmp_path / "traces").iterdir():
        assert "91827364" not in path.read_text()


def test_a_request_nobody_saw_has_no_story(tmp_path: Path) -> None:
    record(tmp_path)

    assert read_story(tmp_path, "r2") == []


def test_a_line_cut_off_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    record(tmp_path)
    with (tmp_path / "traces" / "engine.0.jsonl").open("a") as file:
        file.write('{"t": 1, "requests": ["r1"')

    assert len(read_story(tmp_path, "r1")) == 7


def test_a_trace_file_is_bounded(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "traces" / "engine.0.jsonl", limit_bytes=20_000)
    for n in range(2_000):
        file.write([{"t": float(n), "kind": "send", "what": "StartWave"}])
    file.close()

    assert sum(path.stat().st_size for path in (tmp_path / "traces").iterdir()) <= 21_000


def test_a_follower_sees_new_records_of_all_processes(tmp_path: Path) -> None:
    files = recorders(tmp_path)
    follower = Follower(tmp_path)
    for n, file in enumerate(files.values()):
        file.write([{"t": float(-n), "what": str(n)}])

    assert [one["what"] for one in follower.poll()] == ["2", "1", "0"]
    assert follower.poll() == []
    for file in files.values():
        file.close()


def test_a_flood_is_told_as_a_number() -> None:
    flow = FlowRecorder("engine.0", entries_max=10)
    for _ in range(25):
        flow.send(ENGINE, Send("outputs", StepOutputs(LOAD, ()), CLIENT), CLIENT, "x")

    records = flow.take(60.0)

    assert [one["kind"] for one in records] == ["send"] * 10 + ["dropped"]
    assert records[-1]["count"] == 15
    assert flow.take(60.0) == []


def test_what_does_not_fit_its_share_of_time_waits() -> None:
    flow = FlowRecorder("engine.0")
    for _ in range(5):
        flow.send(ENGINE, Send("outputs", StepOutputs(LOAD, ()), CLIENT), CLIENT, "x")

    assert flow.take(0.0) == []
    assert len(flow.take(60.0)) == 5


STARTS = Route(COORDINATOR, "starts", ENGINE, "starts", "reliable")
OUTPUTS = Route(ENGINE, "outputs", CLIENT, "outputs", "reliable")


def a_frame(*messages: tuple[int, str, object]) -> bytes:
    items = [frames.envelope(route, trace, encode(message)) for route, trace, message in messages]
    return frames.write_frame(frames.DATA, 1, 2, 0, 0, 0, items)


def engines_flow() -> FlowRecorder:
    flow = FlowRecorder("engine.0")
    flow.learn("coordinator.0", 0, STARTS)
    flow.learn("frontend.0", 3, OUTPUTS)
    return flow


def test_a_frame_is_told_message_by_message_with_its_ends() -> None:
    flow = engines_flow()
    flow.frame("coordinator.0", False, a_frame((0, "a", StartWave(3)), (9, "a", StartWave(4)), (0, "b", StartWave(5))))
    flow.frame("frontend.0", True, a_frame((3, "c", StepOutputs(LOAD, (OUTPUT,)))))

    told = flow.take(60.0)

    assert [(one["actor"], one["kind"], one["what"], one["peer"], one["port"], one["trace"]) for one in told] == [
        ("engine.0", "recv", "StartWave", "coordinator.0", "starts", "a"),
        ("engine.0", "recv", "StartWave", "coordinator.0", "starts", "b"),
        ("engine.0", "send", "StepOutputs", "client.0", "outputs", "c"),
    ]
    assert [one.get("wave") for one in told] == [3, 5, 3]
    assert "918273647" not in repr(told)


@pytest.mark.parametrize("data", [b"", b"\x87", bytes(200), a_frame(), b"\x87\x02" + bytes(100)])
def test_bytes_that_are_no_messages_tell_nothing(data: bytes) -> None:
    flow = engines_flow()
    flow.frame("coordinator.0", False, data)

    assert flow.take(60.0) == []


def test_a_process_without_actors_of_ours_is_not_told_of() -> None:
    flow = engines_flow()
    flow.frame("supervisor", False, a_frame((0, "a", StartWave(3))))

    assert flow.take(60.0) == []


def test_frames_that_wait_are_bounded_by_bytes() -> None:
    flow = engines_flow()
    big = a_frame((3, "c", GroupKey(1, "key", bytes(FRAME_BYTES_KEPT // 4))))
    for _ in range(10):
        flow.frame("frontend.0", True, big)

    told = flow.take(60.0)

    assert [one["kind"] for one in told] == ["send"] * 3 + ["dropped"]
    assert told[-1]["count"] == 7
