"""Verbs that read topology files and start nothing: check, draw, plan."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpactors.cli.errors import REFUSED, Refusal

Set = Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=False, negative="")]


def folder_of(file: str) -> Path:
    """Where a topology file lies: its own actors' modules and relative paths are looked for there."""
    return Path(file).resolve().parent


def catalogue_for(file: str) -> Any:
    """The built-in actors, and any class that can be imported from beside the file."""
    from dpactors.runtime.boot import CATALOGUE, load_catalogue

    return load_catalogue(CATALOGUE, str(folder_of(file)))


def load(file: str, overrides: tuple[str, ...] = ()) -> Any:
    """A checked document and its plan; raises Refusal with all problems."""
    from dpactors.runtime.boot import planned
    from dpactors.topology.check import checked_topology
    from dpactors.topology.errors import TopologyError

    catalogue = catalogue_for(file)
    try:
        document = checked_topology(file, catalogue, overrides)
    except TopologyError as error:
        raise Refusal(str(error)) from error
    return document, planned(document, catalogue)


def check(*files: str, explain: bool = False, set_: Set = ()) -> int:
    """Validate topology files and print every problem with its place and mend.

    Example: dpactors check topologies/*.toml

    Parameters
    ----------
    files
        Topology files.
    explain
        Print every setting with type, unit, default, value, meaning and where the value came from.
    set_
        Override one value, as PATH=VALUE.
    """
    if not files:
        raise Refusal("check: name at least one topology file")
    code = 0
    for file in files:
        try:
            document, _ = load(file, set_)
        except Refusal as error:
            print(error)
            code = REFUSED
            continue
        print(f"{file}: {document.name} is sound")
        if explain:
            _explain(document)
    return code


def _explain(document: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    from dpactors.topology.settings import explain

    table = Table(title=document.name)
    for column in ("setting", "value", "default", "type", "unit", "meaning", "from"):
        table.add_column(column, overflow="fold")
    for row in explain(document, catalogue_for(document.source.file)):
        table.add_row(row.path, row.value, row.default, row.type, row.unit, row.meaning, row.origin)
    Console().print(table)


def draw(
    file: str,
    *,
    format: Literal["mermaid", "svg", "dot"] = "mermaid",
    set_: Set = (),
) -> int:
    """Print the graph of actors and wires.

    Example: dpactors draw topologies/hybrid_2node.toml --format svg > hybrid.svg

    Parameters
    ----------
    file
        A topology file.
    format
        mermaid, svg or dot.
    set_
        Override one value, as PATH=VALUE.
    """
    from dpactors.topology.draw import draw as drawn
    from dpactors.topology.graph import build

    document, _ = load(file, set_)
    print(drawn(document, build(document, catalogue_for(file)), format))
    return 0


def plan(file: str, *, host: str | None = None, json: bool = False, set_: Set = ()) -> int:
    """Print processes, actors, sockets and start order.

    Example: dpactors plan topologies/internal_2node.toml --host node1

    Parameters
    ----------
    file
        A topology file.
    host
        Only this host's part.
    json
        One JSON document instead of tables.
    set_
        Override one value, as PATH=VALUE.
    """
    _, made = load(file, set_)
    if host is not None and host not in made.hosts:
        raise Refusal(f"{Path(file).name} has no host {host}. Hosts: {', '.join(made.hosts)}")
    print_plan(made, host, json=json)
    return 0


def print_plan(made: Any, host: str | None, *, json: bool) -> None:
    """Show a plan; also what ``up --dry-run`` prints."""
    import attrs

    from dpactors.topology.descriptors import needs
    from dpactors.topology.sockets import sockets

    rows = sockets(made, host)
    supervisor, *own = needs(made, made.hosts if host is None else [host])
    need = {one.process: one for one in own}
    processes = [one for one in made.processes if host in (None, one.host)]
    if json:
        import orjson

        tree = {
            "name": made.name,
            "processes": [
                {
                    "name": one.name,
                    "host": one.host,
                    "actors": [str(actor.setup.address) for actor in one.actors],
                    "listen": list(one.listen),
                    "start_limit_s": one.start_limit_s,
                    "links": need[one.name].links,
                    "descriptors": need[one.name].descriptors,
                }
                for one in processes
            ],
            "supervisor": attrs.asdict(supervisor),
            "sockets": [attrs.asdict(row) for row in rows],
        }
        print(orjson.dumps(tree).decode())
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{made.name}: processes in start order")
    for column in ("process", "host", "actors", "HTTP", "links", "descriptors"):
        table.add_column(column, overflow="fold")
    for one in processes:
        actors = ", ".join(str(actor.setup.address) for actor in one.actors)
        limits = need[one.name]
        table.add_row(one.name, one.host, actors, ", ".join(one.listen), str(limits.links), str(limits.descriptors))
    table.caption = f"{supervisor.process}: {supervisor.links} links, {supervisor.descriptors} descriptors"
    console.print(table)
    table = Table(title="ZeroMQ sockets")
    for column in ("process", "socket", "side", "endpoint", "peer", "delivery", "messages"):
        table.add_column(column, overflow="fold")
    for row in rows:
        words = (row.process, row.socket, row.side, row.endpoint, row.peer)
        table.add_row(*words, ", ".join(row.delivery), ", ".join(row.tags))
    console.print(table)
