"""Keys by which hosts know each other."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dpactors.cli.errors import Refusal
from dpactors.cli.files import Set

keys = App(name="keys", help="Keys that encrypt and authenticate the links between hosts.", help_format="plaintext")


@keys.command
def new(
    folder: str,
    file: str | None = None,
    *,
    host: Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="")] = (),
    set_: Set = (),
) -> int:
    """Make a key pair for each host: HOST.key to give away, HOST.key_secret (mode 0600) for that host alone.

    Example: dpactors keys new keys topologies/hybrid_2node.toml

    Parameters
    ----------
    folder
        Where they go; existing keys are never overwritten.
    file
        A topology file: a pair for each of its hosts.
    host
        A host by name instead; may be given several times.
    set_
        Override one value of the file, as PATH=VALUE.
    """
    from dpactors.net.curve import KeysError, make_keys
    from dpactors.topology.document import NAME

    hosts = host or (_hosts_of(file, set_) if file else ())
    if not hosts:
        raise Refusal("keys new: name a topology file, or hosts by --host")
    if wrong := [name for name in hosts if NAME.fullmatch(name) is None]:
        raise Refusal(f"keys new: {wrong[0]!r} is no host name: use letters, digits, _ and -, a letter first")
    try:
        made = make_keys(Path(folder), dict.fromkeys(hosts))
    except KeysError as error:
        raise Refusal(f"keys new: {error}") from error
    for path in made:
        print(path)
    return 0


def _hosts_of(file: str, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts of a file that need not be sound yet: what it lacks may be these very keys."""
    from dpactors.topology.document import read_topology
    from dpactors.topology.errors import TopologyError

    try:
        return tuple(read_topology(file, overrides).hosts)
    except TopologyError as error:
        raise Refusal(str(error)) from error
