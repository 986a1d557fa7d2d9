"""The trace files of a run: one bounded file a process, and one request's story across all of them."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

LIMIT_BYTES = 64 << 20
"""Per process, both generations of its file together."""
AFTERMATH_S = 1.0
"""How long after a request's last record the end of its wave still belongs to its story."""

WAVE = frozenset({"FirstRequest", "StartWave", "WaveWanted", "WaveJoined", "WaveComplete"})
STEPS = frozenset({"RunStep", "StepResult", "AgreeIdle", "Agreed"})
_SHOWN_ELSEWHERE = frozenset({"t", "process", "actor", "kind", "what", "trace", "port", "peer", "requests"})


class TraceFile:
    """Records as JSON lines; two generations of at most half the limit each."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._lost = 0
        """Records that a full disk did not take."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("ab")

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Append records; a full disk loses them and counts them, for requests go on."""
        lines = [_line(record) for record in records]
        if self._lost:
            lines.append(_line({"t": time.time(), "process": self.path.stem, "kind": "dropped", "count": self._lost}))
        if not lines:
            return
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
        except OSError:
            self._lost += len(lines)
            return
        self._lost = 0
        if self._file.tell() > self._limit_bytes // 2:
            self._rotate()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        self.path.replace(self.path.with_name(self.path.name + ".1"))
        self._file = self.path.open("ab")


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record, default=repr, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)


# ------------------------------------------------------------- reading


def read_story(run_dir: Path, request_id: str) -> list[dict[str, Any]]:
    """All that happened to one request, in order of time: its own records, its waves and its steps.

    Records of waves and steps name no request; they belong to the story from the request's dispatch to its end.
    """
    own = [one for one in _records(run_dir, (request_id.encode(),)) if _is_about(one, request_id)]
    if not own:
        return []
    first, last = min(one["t"] for one in own), max(one["t"] for one in own)
    actors = {one["actor"] for one in own if "actor" in one}
    marks = [f'"{name}"'.encode() for name in (*WAVE, *STEPS)]
    around = [
        one for one in _records(run_dir, marks) if not _is_about(one, request_id) and _belongs(one, first, last, actors)
    ]
    return sorted([*own, *around], key=lambda one: one["t"])


def _is_about(record: dict[str, Any], request_id: str) -> bool:
    return record.get("trace") == request_id or request_id in record.get("requests", ())


def _belongs(record: dict[str, Any], first: float, last: float, actors: set[str]) -> bool:
    if record.get("what") == "WaveComplete":
        return first <= record["t"] <= last + AFTERMATH_S
    if not first <= record["t"] <= last:
        return False
    return record.get("what") in WAVE or record.get("actor") in actors or bool(record.get("dummy"))


def _records(run_dir: Path, marks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Records whose line holds one of `marks`; a line cut off by a kill is passed over."""
    needles = tuple(marks)
    for path in trace_files(run_dir):
        with path.open("rb") as file:
            for line in file:
                if any(needle in line for needle in needles):
                    try:
                        yield orjson.loads(line)
                    except ValueError:
                        continue


def trace_files(run_dir: Path) -> list[Path]:
    """The trace files of a run, older generations first."""
    folder = run_dir / "traces"
    return [*sorted(folder.glob("*.jsonl.1")), *sorted(folder.glob("*.jsonl"))]


def as_text(story: Iterable[dict[str, Any]]) -> str:
    """A story in aligned columns: milliseconds since its start, actor, what happened."""
    records = list(story)
    if not records:
        return ""
    start = records[0]["t"]
    width = max(len(str(one.get("actor", one.get("process", "")))) for one in records)
    return "\n".join(
        f"+{(one['t'] - start) * 1000:9.2f} ms  {one.get('actor', one.get('process', '')):{width}}  {in_words(one)}"
        for one in records
    )


def in_words(record: dict[str, Any]) -> str:
    """One record without its time and place."""
    kind, what, peer = record.get("kind", ""), record.get("what", ""), record.get("peer")
    match kind:
        case "send":
            text = f"-> {peer} {what}"
        case "recv":
            text = f"<- {peer} {what}"
        case "job":
            text = f"starts {what}"
        case "job.done":
            text = f"has {what}"
        case "job.said":
            text = f"hears {what}"
        case _:
            text = f"{kind} {what}" + (f" of {peer}" if peer else "")
    facts = {key: value for key, value in record.items() if key not in _SHOWN_ELSEWHERE}
    return " ".join([text, *(f"{key}={value}" for key, value in facts.items())])


class Follower:
    """New records of all trace files of a run, as they are written."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._offsets = {path: path.stat().st_size for path in trace_files(run_dir)}
        self._inodes = {path: path.stat().st_ino for path in self._offsets}

    def poll(self) -> list[dict[str, Any]]:
        """What was written since the last call, in order of time."""
        found: list[dict[str, Any]] = []
        for path in sorted((self._run_dir / "traces").glob("*.jsonl")):
            found.extend(self._new(path))
        return sorted(found, key=lambda one: one.get("t", 0.0))

    def _new(self, path: Path) -> Iterator[dict[str, Any]]:
        with path.open("rb") as file:
            inode = path.stat().st_ino
            if self._inodes.get(path, inode) != inode:
                self._offsets[path] = 0
            self._inodes[path] = inode
            file.seek(self._offsets.get(path, 0))
            data = file.read()
        whole, _, _ = data.rpartition(b"\n")
        self._offsets[path] = self._offsets.get(path, 0) + len(whole) + (1 if whole else 0)
        for line in whole.splitlines():
            try:
                yield orjson.loads(line)
            except ValueError:
                continue
