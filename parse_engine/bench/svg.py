"""A small canvas for charts: axes, marks and text as SVG that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

INK, FAINT, GRID = "#1f2430", "#6b7280", "#e5e7eb"


class Panel:
    """One chart with a title, a plotting area and scales.

    Parameters
    ----------
    title : str
        What stands above it.
    x, y : (float, float), optional
        The values at the two ends of each axis.
    width, height : int
        Size of the whole in pixels.
    left, bottom, right : int
        Room for labels around the plotting area.
    """

    def __init__(
        self,
        title: str,
        *,
        x: tuple[float, float] = (0, 1),
        y: tuple[float, float] = (0, 1),
        width: int = 460,
        height: int = 300,
        left: int = 56,
        bottom: int = 44,
        right: int = 16,
    ) -> None:
        self.width, self.height = width, height
        self.left, self.right = left, width - right
        self.top, self.bottom = 34, height - bottom
        self._x, self._y = _widened(x), _widened(y)
        self._parts: list[str] = []
        self.title = title
        self.text(8, 18, title, size=13, weight=600)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a pair of values lies, in pixels."""
        across = (x - self._x[0]) / (self._x[1] - self._x[0])
        up = (y - self._y[0]) / (self._y[1] - self._y[0])
        return (
            self.left + across * (self.right - self.left),
            self.bottom - up * (self.bottom - self.top),
        )

    def x_axis(self, label: str, form: Callable[[float], str]) -> None:
        """Draw ticks and a label below the plotting area."""
        for value in ticks(*self._x):
            x, _ = self.at(value, self._y[0])
            self.line([(x, self.top), (x, self.bottom)], GRID)
            self.text(x, self.bottom + 15, form(value), anchor="middle", colour=FAINT)
        middle = (self.left + self.right) / 2
        self.text(middle, self.bottom + 33, label, anchor="middle", colour=FAINT)

    def y_axis(self, form: Callable[[float], str]) -> None:
        """Draw ticks to the left of the plotting area."""
        for value in ticks(*self._y):
            _, y = self.at(self._x[0], value)
            self.line([(self.left, y), (self.right, y)], GRID)
            self.text(self.left - 6, y + 4, form(value), anchor="end", colour=FAINT)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        colour: str,
        *,
        width: float = 1,
        dash: str = "",
    ) -> None:
        """Draw a line through points, in pixels."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'stroke-dasharray="{dash}" stroke-linejoin="round"/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str, tip: str) -> None:
        """Draw a rectangle, in pixels, that tells its value when it is pointed at."""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0, width):.1f}" height="{height:.1f}" '
            f'fill="{colour}"><title>{escape(tip)}</title></rect>'
        )

    def dot(self, x: float, y: float, colour: str, tip: str) -> None:
        """Draw a point, in pixels, that tells its value when it is pointed at."""
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}" stroke="white">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        colour: str = INK,
        size: int = 11,
        weight: int = 400,
    ) -> None:
        """Write a text, in pixels."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
            f'font-size="{size}" font-weight="{weight}">{escape(text)}</text>'
        )

    def svg(self) -> str:
        """Return the whole."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{self.width}" '
            f'height="{self.height}" viewBox="0 0 {self.width} {self.height}" '
            f'aria-label="{escape(self.title)}">{"".join(self._parts)}</svg>'
        )


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round values between two ends, about as many as are wanted."""
    rough = (high - low) / wanted
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def apart(wanted: Sequence[float], gap: float, lowest: float) -> list[float]:
    """Move places for labels so far that they are a gap apart and none is below the lowest."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    moved, least = list(wanted), -math.inf
    for index in order:
        moved[index] = max(moved[index], least)
        least = moved[index] + gap
    most = lowest
    for index in reversed(order):
        moved[index] = min(moved[index], most)
        most = moved[index] - gap
    return moved


def _widened(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends
    return (low, high) if high > low else (low, low + 1)
