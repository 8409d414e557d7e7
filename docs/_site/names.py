"""Python names as users write them: ``gdrpy.Region``, wherever in the package it is defined."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import gdrpy
from gdrpy import errors

#: Classes that users make by calling them; the others are made by functions and methods.
_CALLED = {"gdrpy.Channel", "gdrpy.Inbox", "gdrpy.Link", "gdrpy.Arena", "gdrpy.torch.Pool"}

#: What stands in annotations, and what it means to users.
_MEANINGS = {
    r"\bR\b": "BrokerRegion",  # what a call of either client returns
    r"\b_Bytes\b": "Buffer",
    r"\b(Shown|Transfers)\b": "Region",  # or a Pin
    r"\bBatch\b": "contextlib.AbstractContextManager[None]",
    r"\b(abc\.)?Mapping\[": "collections.abc.Mapping[",
}

_ERRORS = re.compile(rf"(?<![\w.`])({'|'.join(set(vars(errors)) & set(gdrpy.__all__))})(?![\w`])")


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """The entry of a public name that was referred to bare, or by the module of its definition."""
    domain = env.domains.python_domain
    words = node["reftarget"].replace("Shown", "Region").split(".")
    if node.get("refdomain") == "py":
        for end in (".".join(words[-2:]), words[-1]):
            found = [name for name in domain.objects if name.endswith(f".{end}")]
            if found:
                target = min(found, key=len)
                return domain.resolve_xref(
                    env, node["refdoc"], app.builder, node["reftype"], target, node, content
                )
    return None


@cache
def _stubs() -> dict[tuple[str, str], ast.FunctionDef]:
    """The methods of the C types, by class and name: their types are in the stub file."""
    text = (Path(gdrpy.__file__).parent / "_core" / "_mapping.pyi").read_text()
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {
        (one.name, method.name): method
        for one in classes
        for method in one.body
        if isinstance(method, ast.FunctionDef)
    }


def _signature(
    _app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    _options: Any,
    arguments: str | None,
    result: str | None,
) -> tuple[str, str | None] | None:
    if arguments is None:
        return None
    if what in ("class", "exception") and name not in _CALLED:
        return "", None
    home = getattr(obj, "__objclass__", None)
    stub = _stubs().get((home.__name__, name.rpartition(".")[2])) if home else None
    if stub is not None:
        stub.args.args = [one for one in stub.args.args if one.arg != "self"]
        stub.args.posonlyargs = [one for one in stub.args.posonlyargs if one.arg != "self"]
        arguments = f"({ast.unparse(stub.args)})"
        result = stub.returns and ast.unparse(stub.returns)
    if result and inspect.isgeneratorfunction(inspect.unwrap(obj)):  # only context managers are
        result = result.replace("Iterator[", "contextlib.AbstractContextManager[")
    module = "gdrpy.aio" if name.startswith("gdrpy.aio.") else "gdrpy"
    return _said(arguments, module), result and _said(result, module)


def _said(annotation: str, module: str) -> str:
    for pattern, meaning in _MEANINGS.items():
        annotation = re.sub(pattern, meaning, annotation)
    return re.sub(r"(?<![\w.])Broker\b", f"{module}.Broker", annotation)


def _bases(_app: Sphinx, _name: str, _obj: object, _options: Any, bases: list[type]) -> None:
    """The bases of an error that users know: private ones are told by theirs."""
    bases[:] = [
        one
        for base in bases
        for one in (base.__bases__ if base.__name__.startswith("_") else (base,))
    ]


def _docstring(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: Any, lines: list[str]
) -> None:
    """A list of parameters is laid out as one; errors that are raised lead to their entries."""
    if lines and lines[0].startswith("Alias for field number"):  # of a NamedTuple, by Python
        lines.clear()
    if "Args:" in lines:
        first = lines.index("Args:") + 1
        last = lines.index("", first) if "" in lines[first:] else len(lines)
        lines[first - 1 : last] = [
            re.sub(r"^    (\w+): ", r":param \1: ", line) for line in lines[first:last]
        ]
    raising = False
    for i, line in enumerate(lines):
        raising = bool(line) and (raising or "Raises " in line)
        if raising:
            lines[i] = _ERRORS.sub(r":py:exc:`~gdrpy.\1`", line)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-bases", _bases)
    app.connect("autodoc-process-docstring", _docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
