"""What a reader of a plot would trip over: words that are cut off, or that cover each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any


def faults(figure: Any) -> list[str]:
    """The words of a figure that leave it or overlap, and legends that cover axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in _texts(figure)]
    page = figure.bbox.padded(1)
    found = [
        f"{words!r} is cut off"
        for words, box in boxes
        if not (page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1)
    ]
    found += [
        f"{one!r} and {other!r} overlap"
        for (one, box), (other, beside) in combinations(boxes, 2)
        if box.padded(-1).overlaps(beside.padded(-1))
    ]
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        found += [
            f"the legend covers {one.get_title()!r}"
            for one in figure.axes
            if box.overlaps(one.get_tightbbox(renderer))
        ]
    return found


def _texts(figure: Any) -> Iterator[Any]:
    """Every text that is drawn."""
    shown = [*figure.texts, *(text for one in figure.legends for text in one.get_texts())]
    for axes in figure.axes:
        shown += [axes.title, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
            shown += [axis.label, *(label for place, label in ticks if low <= place <= high)]
    yield from (text for text in shown if text.get_text())
