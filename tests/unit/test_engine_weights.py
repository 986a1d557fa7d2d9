"""Weights: one file or many, this rank's experts only, Progress as they come."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dpactors.engine.config import read_config
from dpactors.engine.errors import ModelRefused
from dpactors.engine.weights import INDEX, ExpertMlp, load_weights, local_experts
from dpactors.models import model_dir
from dpactors.serving.jobs import Progress
from tests.ranks import nothing

BUNDLED = model_dir("tiny-moe")


def load(directory: Path, rank: int = 0, size: int = 1, heard: list[Progress] | None = None) -> Any:
    """All weights of the bundled model's shape from `directory`."""
    say = heard.append if heard is not None else nothing
    return load_weights(directory, read_config(BUNDLED), torch.float32, say, rank=rank, size=size)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The bundled model in three files with an index."""
    tensors = load_file(str(BUNDLED / "model.safetensors"))
    weight_map: dict[str, str] = {}
    for shard in range(3):
        file = f"model-{shard}.safetensors"
        names = sorted(tensors)[shard::3]
        save_file({name: tensors[name] for name in names}, str(tmp_path / file))
        weight_map |= dict.fromkeys(names, file)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


def test_shards_hold_what_one_file_holds(shards: Path) -> None:
    one, many = load(BUNDLED), load(shards)

    assert torch.equal(one.embedding, many.embedding)
    assert one.head is one.embedding
    for left, right in zip(one.layers, many.layers, strict=True):
        assert torch.equal(left.qkv, right.qkv)
        assert torch.equal(left.mlp.gate_up, right.mlp.gate_up)
        assert torch.equal(left.mlp.down, right.mlp.down)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_share_the_experts_without_rest(size: int) -> None:
    whole = load(BUNDLED)

    parts = [load(BUNDLED, rank, size) for rank in range(size)]

    assert list(range(8)) == [expert for rank in range(size) for expert in local_experts(8, rank, size)]
    for layer, expected in enumerate(whole.layers):
        mlps: list[ExpertMlp] = [part.layers[layer].mlp for part in parts]
        assert torch.equal(expected.mlp.gate_up, torch.cat([mlp.gate_up for mlp in mlps]))
        assert torch.equal(expected.mlp.down, torch.cat([mlp.down for mlp in mlps]))
        assert all(torch.equal(expected.mlp.router, mlp.router) for mlp in mlps)


def test_progress_rises_to_one() -> None:
    heard: list[Progress] = []
    load(BUNDLED, heard=heard)

    fractions = [progress.fraction for progress in heard]
    assert (0.0, 1.0) == (fractions[0], fractions[-1])
    assert sorted(fractions) == fractions
    assert "weights of layer 2 of 4" in [progress.doing for progress in heard]


def test_only_own_experts_are_read(tmp_path: Path) -> None:
    """A rank loads from a directory that lacks the others' experts."""
    tensors = load_file(str(BUNDLED / "model.safetensors"))
    mine = {f".experts.{expert}." for expert in range(4, 8)}
    kept = {name: t for name, t in tensors.items() if ".experts." not in name or any(one in name for one in mine)}
    save_file(kept, str(tmp_path / "model.safetensors"))

    assert 4 == load(tmp_path, rank=1, size=2).layers[0].mlp.down.shape[0]
    with pytest.raises(ModelRefused, match=r"experts\.0\.gate_proj\.weight is missing"):
        load(tmp_path, rank=0, size=2)


def test_a_wrong_shape_is_refused(tmp_path: Path) -> None:
    tensors = load_file(str(BUNDLED / "model.safetensors"))
    save_file({**tensors, "model.norm.weight": torch.ones(7)}, str(tmp_path / "model.safetensors"))

    with pytest.raises(ModelRefused, match=r"model\.norm\.weight has shape \[7\]; config\.json says \[192\]"):
        load(tmp_path)


def test_no_weights_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"neither model\.safetensors nor"):
        load(tmp_path)


def test_a_missing_shard_is_refused(shards: Path) -> None:
    (shards / "model-1.safetensors").unlink()

    with pytest.raises(ModelRefused, match=r"model-1\.safetensors: named in"):
        load(shards)
