"""Graph -> text for drawing programs: hosts, processes, actors and the wires between them."""

from collections.abc import Iterator, Mapping

from attrs import frozen

from dpactors.actor.address import Address
from dpactors.topology.document import Document, Wire
from dpactors.topology.graph import Graph, Link, Node, ends_of, within
from dpactors.topology.svg import Figure, Line, Picture, Stack, draw_svg

FORMATS = ("mermaid", "svg", "dot")


@frozen
class _Edge:
    """All links from one actor to another."""

    source: Address
    target: Address
    labels: tuple[str, ...]


def draw(document: Document, graph: Graph, style: str = "mermaid") -> str:
    """The graph as text of one of FORMATS; raises ValueError for another."""
    painters = {"mermaid": mermaid, "svg": svg, "dot": dot}
    if style not in painters:
        raise ValueError(f"{style} is no format. Known: {', '.join(FORMATS)}")
    return painters[style](document, graph)


def mermaid(document: Document, graph: Graph) -> str:
    """A mermaid flowchart."""
    ids = {node.address: f"a{i}" for i, node in enumerate(graph.nodes)}
    lines = [f"---\ntitle: {document.name}\n---\nflowchart LR"]
    for i, (host, processes) in enumerate(_hosts(graph).items()):
        lines.append(f'  subgraph host{i}["{host} {graph.hosts[host]}"]')
        for j, (process, nodes) in enumerate(processes.items()):
            lines.append(f'    subgraph host{i}p{j}["{process}"]')
            lines.extend(f'      {ids[node.address]}["{node.address}"]' for node in nodes)
            lines.append("    end")
        lines.append("  end")
    for edge in _edges(document, graph):
        label = "<br/>".join(edge.labels)
        lines.append(f'  {ids[edge.source]} -->|"{label}"| {ids[edge.target]}')
    return "\n".join(lines) + "\n"


def dot(document: Document, graph: Graph) -> str:
    """A Graphviz digraph."""
    lines = [f'digraph "{document.name}" {{', "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for i, (host, processes) in enumerate(_hosts(graph).items()):
        lines.append(f'  subgraph "cluster_{i}" {{ label="{host} {graph.hosts[host]}"; style=rounded;')
        for j, (process, nodes) in enumerate(processes.items()):
            lines.append(f'    subgraph "cluster_{i}_{j}" {{ label="{process}"; style=dashed;')
            lines.extend(f'      "{node.address}";' for node in nodes)
            lines.append("    }")
        lines.append("  }")
    for edge in _edges(document, graph):
        label = r"\n".join(edge.labels)
        lines.append(f'  "{edge.source}" -> "{edge.target}" [label="{label}"];')
    return "\n".join([*lines, "}"]) + "\n"


def svg(document: Document, graph: Graph) -> str:
    """An SVG picture; one colour a wire, named in the legend."""
    stacks = [
        Stack(
            f"{host} {graph.hosts[host]}",
            tuple(
                Figure(process, role.name, tuple(str(node.address) for node in nodes))
                for role in document.roles
                for process, nodes in processes.items()
                if nodes[0].role == role.name
            ),
        )
        for host, processes in _hosts(graph).items()
    ]
    rows = tuple(role.name for role in document.roles)
    lines: list[Line] = []
    legend: list[str] = []
    for wire in document.wires:
        own = [link for link in graph.links if _drawn_by(link, wire)]
        lines.extend(Line(str(link.source), str(link.target), wire.index, _label(document, wire)) for link in own)
        legend.append(f"{wire.source} → {wire.target}, {_reach(document, wire)}, {len(own)} links")
    return draw_svg(Picture(document.name, tuple(stacks), rows, tuple(lines), tuple(legend)))


def _hosts(graph: Graph) -> Mapping[str, Mapping[str, list[Node]]]:
    """Host to process to its actors, each in start order."""
    hosts: dict[str, dict[str, list[Node]]] = {host: {} for host in graph.hosts}
    for node in graph.nodes:
        hosts[node.host].setdefault(f"{node.role}.{node.address.index}", []).append(node)
    return {host: processes for host, processes in hosts.items() if processes}


def _edges(document: Document, graph: Graph) -> Iterator[_Edge]:
    wires = {ends_of(wire): wire for wire in document.wires}
    labels: dict[tuple[Address, Address], list[str]] = {}
    for link in graph.links:
        wire = wires[(link.source.role, link.outlet), (link.target.role, link.inlet)]
        labels.setdefault((link.source, link.target), []).append(_label(document, wire))
    return (_Edge(*ends, tuple(texts)) for ends, texts in labels.items())


def _drawn_by(link: Link, wire: Wire) -> bool:
    return ends_of(wire) == ((link.source.role, link.outlet), (link.target.role, link.inlet))


def _label(document: Document, wire: Wire) -> str:
    return f"{ends_of(wire)[0][1]} ({_reach(document, wire)})"


def _reach(document: Document, wire: Wire) -> str:
    seats = {seat.name: seat for seat in document.seats}
    (source, _), (target, _) = ends_of(wire)
    return "same process" if within(seats[source], seats[target]) else wire.reach
