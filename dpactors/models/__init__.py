"""Where a model lives on disk: bundled with the package, or a directory of the user's."""

from pathlib import Path

BUNDLED = ("tiny-moe",)


def model_dir(name: str) -> Path:
    """The checkpoint directory of a bundled model or of a path.

    Raises FileNotFoundError that says what would be accepted.
    """
    if name in BUNDLED:
        return Path(__file__).parent / name
    path = Path(name).expanduser()
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"model {name!r}: no config.json there; give a checkpoint directory or {BUNDLED[0]!r}")
    return path
