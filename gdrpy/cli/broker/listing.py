"""Tables of thousands of named things.

rich takes seconds to lay them out, and tenths of a second to be imported.
"""

from __future__ import annotations

from gdrpy.cli.output import Output

#: The fewest cells of a name: of one that loses its middle, so that the files of a checkpoint still
#: differ (``llama…00001-of-00002.safetensors``), and of one that is folded.
_NAME_CELLS, _FOLDED_CELLS = 32, 12
#: Rules from left to right and bars: the top, of the titles, below them, of the rows, the bottom;
#: and what stands for the middle of a name.
_LINES = ("┏━┳┓", "┃", "┡━╇┩", "│", "└─┴┘", "…")
_ASCII_LINES = ("+-++", "|", "+-++", "|", "+-++", "~")


def drawn(rows: list[tuple[str, ...]], output: Output, *, whole: bool = False) -> str:
    """A table that fits stdout's width: the titles, then the rows, whose first cells are names.

    Long names lose their middle, and the last columns are left out, which a line below names. With
    ``whole`` names are folded instead, and all columns are there.
    """
    widths = [max(map(_cells, column)) for column in zip(*rows, strict=True)]
    least = min(widths[0], _FOLDED_CELLS if whole else _NAME_CELLS)
    while not whole and len(widths) > 1 and least + _besides_name(widths) > output.width():
        widths.pop()
    widths[0] = min(widths[0], max(least, output.width() - _besides_name(widths)))
    top, title, middle, bar, bottom, _ = _LINES if output.draws() else _ASCII_LINES

    def rule(left: str, line: str, between: str, right: str) -> str:
        return left + between.join(line * (width + 2) for width in widths) + right

    def lines(row: tuple[str, ...], bar: str) -> list[str]:
        first = _folded(row[0], widths[0]) if whole else [fitted(row[0], widths[0], output)]
        rest = [_padded(*one) for one in zip(row[1:], widths[1:], strict=False)]
        empty = [" " * width for width in widths[1:]]
        return [
            f"{bar} {f' {bar} '.join([_padded(name, widths[0]), *others])} {bar}"
            for name, others in zip(first, [rest] + [empty] * len(first), strict=False)
        ]

    drawn = [rule(*top), *lines(rows[0], title), rule(*middle)]
    for row in rows[1:]:
        drawn += lines(row, bar)
    left_out = ", ".join(rows[0][len(widths) :])
    told = [f"no room for: {left_out} (see --json)"] if left_out else []
    return "\n".join([*drawn, rule(*bottom), *told])


def _besides_name(widths: list[int]) -> int:
    """Cells that a line has besides the name: the other columns, bars and spaces."""
    return sum(widths[1:]) + 3 * len(widths) + 1


def _cells(text: str) -> int:
    """Cells of a terminal that a text takes."""
    if text.replace(_LINES[-1], "").isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _padded(text: str, width: int) -> str:
    """A text in so many cells, if it does not have more."""
    return text + " " * (width - _cells(text))


def _folded(text: str, width: int) -> list[str]:
    """A text in pieces of so many cells, which are cut behind a separator where they can be."""
    pieces = []
    while _cells(text) > width:
        if text.isascii():
            piece = text[:width]
        else:
            from rich.cells import chop_cells

            piece = chop_cells(text, width)[0]
        end = 1 + max(map(piece.rfind, "./"))
        piece = piece[:end] if end > len(piece) // 2 else piece
        pieces.append(piece)
        text = text[len(piece) :]
    return [*pieces, text]


def fitted(text: str, width: int, output: Output) -> str:
    """A text in at most so many cells: a long one keeps little but its end, for the ends differ."""
    if _cells(text) <= width:
        return text
    start = width // 6
    end = width - 1 - start
    mark = (_LINES if output.draws() else _ASCII_LINES)[-1]
    if text.isascii():
        return text[:start] + mark + text[-end:]
    from rich.cells import set_cell_size

    head, tail = set_cell_size(text, start), set_cell_size(text[::-1], end)[::-1]
    return head.rstrip() + mark + tail.lstrip()
