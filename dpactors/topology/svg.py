"""A small SVG layout: hosts are columns, roles are rows, wires are coloured curves named in a legend."""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from attrs import frozen

_LETTER = 7.2
"""Width of a letter at 12 px, in px; a little generous."""
_BOX_H, _GAP, _PAD, _TITLE, _ROW_GAP, _LEGEND = 28.0, 14.0, 8.0, 18.0, 64.0, 18.0
_ACROSS_MAX = 8
"""Processes side by side before a row goes on below."""
_COLOURS = (
    "#1f5fa8",
    "#b3561c",
    "#2e7d4f",
    "#8a3a8f",
    "#a8323c",
    "#4d6b1f",
    "#0d7c86",
    "#7a5c00",
    "#5b4bb5",
    "#666",
    "#c2417c",
    "#38761d",
)


@frozen
class Figure:
    """One process and the actors in it."""

    name: str
    row: str
    boxes: tuple[str, ...]


@frozen
class Stack:
    """One host and its processes."""

    name: str
    figures: tuple[Figure, ...]


@frozen
class Line:
    """One curve between two boxes."""

    source: str
    target: str
    colour: int
    title: str


@frozen
class Picture:
    """All that is drawn."""

    name: str
    stacks: tuple[Stack, ...]
    rows: tuple[str, ...]
    """Names of the rows, top to bottom."""
    lines: tuple[Line, ...]
    legend: tuple[str, ...]
    """A text for each colour."""


@frozen
class _Box:
    """A rectangle in px."""

    x: float
    y: float
    w: float
    h: float


def draw_svg(picture: Picture) -> str:
    """The picture as an SVG document of its own."""
    figures = [figure for stack in picture.stacks for figure in stack.figures]
    letters = max((len(box) for figure in figures for box in figure.boxes), default=1)
    box_w = letters * _LETTER + 2 * _PAD
    tops, bottom = _row_tops(picture)
    boxes: dict[str, _Box] = {}
    shapes: list[str] = []
    x = _GAP
    for stack in picture.stacks:
        width = _stack_width(stack, box_w)
        shapes.append(_rectangle(_Box(x, _GAP, width, bottom - _GAP), stack.name, "host"))
        for row, top in tops.items():
            for place, figure in enumerate(figure for figure in stack.figures if figure.row == row):
                shapes.extend(_figure(figure, _at(figure, x + _PAD, top, place, box_w), box_w, boxes))
        x += width + 2 * _GAP
    shapes.extend(_curves(picture, boxes))
    legend_w = max((len(text) * _LETTER + 60 for text in picture.legend), default=0.0)
    height = bottom + _GAP + _LEGEND * (len(picture.legend) + 1)
    shapes.extend(_legend(picture, bottom + _GAP))
    return "\n".join([*_head(picture, max(x, legend_w), height), *shapes, "</svg>"]) + "\n"


def _head(picture: Picture, width: float, height: float) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12">'
    )
    yield f"<title>{escape(picture.name)}</title>"
    yield "<style>.host{fill:#f5f6f8;stroke:#8a93a0}.process{fill:#fff;stroke:#b5bcc6;stroke-dasharray:4 3}"
    yield ".actor{fill:#e8eef6;stroke:#54657a}path{fill:none;stroke-width:1.3;stroke-opacity:.75}</style>"
    yield '<rect width="100%" height="100%" fill="#fff"/>'
    for i, colour in enumerate(_COLOURS):
        yield (
            f'<marker id="end{i}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 8 4 0 8z" style="fill:{colour}"/></marker>'
        )


def _row_tops(picture: Picture) -> tuple[dict[str, float], float]:
    """Where each row begins, and where the last ends."""
    tops: dict[str, float] = {}
    y = _GAP + _TITLE + _PAD
    for row in picture.rows:
        most = max((sum(figure.row == row for figure in stack.figures) for stack in picture.stacks), default=0)
        if most:
            tops[row] = y
            y += -(-most // _ACROSS_MAX) * (_figure_height() + _GAP) + _ROW_GAP
    return tops, y - _ROW_GAP


def _figure_height() -> float:
    return _TITLE + _BOX_H + 2 * _PAD


def _figure_width(figure: Figure, box_w: float) -> float:
    return len(figure.boxes) * (box_w + _GAP * 2) - _GAP * 2 + 2 * _PAD


def _stack_width(stack: Stack, box_w: float) -> float:
    rows: dict[str, list[float]] = {}
    for figure in stack.figures:
        rows.setdefault(figure.row, []).append(_figure_width(figure, box_w) + _GAP)
    widest = max((sum(widths[:_ACROSS_MAX]) for widths in rows.values()), default=0.0)
    return max(widest + _PAD, len(stack.name) * _LETTER + 2 * _PAD)


def _at(figure: Figure, left: float, top: float, place: int, box_w: float) -> _Box:
    """The rectangle of the process at a place of its row."""
    down, across = divmod(place, _ACROSS_MAX)
    width = _figure_width(figure, box_w)
    return _Box(left + across * (width + _GAP), top + down * (_figure_height() + _GAP), width, _figure_height())


def _figure(figure: Figure, at: _Box, box_w: float, boxes: dict[str, _Box]) -> list[str]:
    """One process; the boxes of its actors are noted in `boxes`."""
    shapes = [_rectangle(at, figure.name, "process")]
    for i, name in enumerate(figure.boxes):
        box = _Box(at.x + _PAD + i * (box_w + _GAP * 2), at.y + _TITLE + _PAD, box_w, _BOX_H)
        boxes[name] = box
        shapes.append(_rectangle(box, name, "actor"))
    return shapes


def _rectangle(box: _Box, text: str, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.w:.1f}" height="{box.h:.1f}" rx="4"/>'
        f'<text x="{box.x + _PAD:.1f}" y="{box.y + (18 if kind == "actor" else 14):.1f}">{escape(text)}</text>'
    )


def _curves(picture: Picture, boxes: dict[str, _Box]) -> Iterator[str]:
    spread = max(len(picture.legend), 1) + 1
    for line in picture.lines:
        share = (line.colour + 1) / spread  # each wire leaves a box at a place of its own
        source, target = boxes[line.source], boxes[line.target]
        colour = line.colour % len(_COLOURS)
        yield (
            f'<path d="{_curve(source, target, share)}" stroke="{_COLOURS[colour]}" marker-end="url(#end{colour})">'
            f"<title>{escape(f'{line.source} {line.title} {line.target}')}</title></path>"
        )


def _curve(source: _Box, target: _Box, share: float) -> str:
    if source.y == target.y:
        right = source.x <= target.x
        x1, x2 = (source.x + source.w, target.x) if right else (source.x, target.x + target.w)
        y = source.y + source.h * share
        return f"M{x1:.1f} {y:.1f} L{x2:.1f} {y:.1f}"
    down = source.y < target.y
    y1, y2 = (source.y + source.h, target.y) if down else (source.y, target.y + target.h)
    x1, x2, middle = source.x + source.w * share, target.x + target.w * share, (y1 + y2) / 2
    return f"M{x1:.1f} {y1:.1f} C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"


def _legend(picture: Picture, top: float) -> Iterator[str]:
    for i, text in enumerate(picture.legend):
        y, colour = top + _LEGEND * (i + 0.5), _COLOURS[i % len(_COLOURS)]
        yield f'<path d="M{_GAP:.1f} {y:.1f} h28" stroke="{colour}"/>'
        yield f'<text x="{_GAP + 36:.1f}" y="{y + 4:.1f}">{escape(text)}</text>'
