"""Lines over a logarithmic axis as an SVG: a picture that docs can show without any tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 380, 60, 110, 40, 50
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#9c755f")
GRID_LINES = 5

Points = Sequence[tuple[float, float]]


def line_chart(title: str, lines: Mapping[str, Points]) -> str:
    """An SVG of named lines; x is logarithmic and labelled at every point, y begins at 0."""
    every = [point for points in lines.values() for point in points]
    xs, most = sorted({x for x, _ in every}), max(y for _, y in every)
    decimals = 0 if most >= 10 * GRID_LINES else 1

    def at(x: float, y: float) -> tuple[float, float]:
        share = (log10(x) - log10(xs[0])) / (log10(xs[-1]) - log10(xs[0]))
        return LEFT + share * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for step in range(GRID_LINES + 1):
        value = most * step / GRID_LINES
        label = f"{value:.{decimals}f}"
        x, y = at(xs[0], value)
        parts.append(f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{WIDTH - RIGHT}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 8:.0f}" y="{y + 4:.0f}" font-size="11" text-anchor="end">{label}</text>')
    for value in xs:
        x, y = at(value, 0)
        parts.append(f'<text x="{x:.0f}" y="{y + 18:.0f}" font-size="11" text-anchor="middle">{value:g}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour, placed = COLOURS[number % len(COLOURS)], [at(x, y) for x, y in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in placed]
        y = TOP + 18 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{y}" font-size="13" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
