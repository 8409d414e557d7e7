"""What does not fit between vLLM's sources and ours, which are parsed and never imported."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from importlib.util import resolve_name
from typing import NamedTuple

Names = dict[str, ast.AST]
Function = ast.FunctionDef | ast.AsyncFunctionDef

#: Decorators that decide on how a function is called, and whether subclasses must have it.
KINDS = ("abstractmethod", "classmethod", "contextmanager", "property", "staticmethod")
#: The classes of what the plug-in calls by these names; ``some_config`` is a SomeConfig.
CALLED = {
    "allocator": ("vllm.device_allocator", "MemAllocator"),
    "self._own": ("vllm.model_executor.model_loader.base_loader", "BaseModelLoader"),
}


class Found(NamedTuple):
    module: str
    node: ast.AST


class Sources:
    """Modules; ``read`` has their text by their path, and "" where there is none."""

    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read

    @functools.cache  # noqa: B019
    def names(self, module: str) -> Names:
        path, package = module.replace(".", "/"), module
        if not (text := self._read(f"{path}/__init__.py")):
            text, package = self._read(f"{path}.py"), module.rpartition(".")[0]
        return named(ast.parse(text).body, package)

    def find(self, module: str, name: str) -> Found | None:
        """Where a module's name is defined; for other libraries' names, where it is imported."""
        node = self.names(module).get(name)
        if isinstance(node, ast.ImportFrom) and of_vllm(node):
            return self.find(str(node.module), node.names[0].name)
        return None if node is None else Found(module, node)

    def members(self, module: str, name: str) -> Names | None:
        """A class's methods and attributes, with those of its bases; None if it is no class."""
        found = self.find(module, name)
        if found is None or not isinstance(found.node, ast.ClassDef):
            return None
        everything: Names = {}
        for base in reversed(found.node.bases):
            everything |= self.members(found.module, bare(base)) or {}
        return everything | own_members(found.node)


def of_vllm(node: ast.ImportFrom) -> bool:
    return str(node.module).partition(".")[0] == "vllm"


def bare(node: ast.expr) -> str:
    """A base's or decorator's name, without what it is given."""
    return ast.unparse(node).partition("[")[0].partition("(")[0]


def named(body: list[ast.stmt], package: str = "") -> Names:
    """What statements define, also under conditions."""
    names: Names = {}
    for node in body:
        if isinstance(node, Function | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                names[alias.asname or alias.name] = ast.ImportFrom(module, [alias], 0)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names[ast.unparse(target)] = node
        elif isinstance(node, ast.If | ast.Try):
            names |= named([*node.orelse, *node.body], package)  # that of TYPE_CHECKING counts
    return names


def own_members(node: ast.ClassDef) -> Names:
    stored: Names = {
        one.attr: one
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and ast.unparse(one.value) == "self"
    }
    return stored | named(node.body)


def kinds(node: ast.AST | None) -> list[str]:
    names = {bare(one).rpartition(".")[2] for one in getattr(node, "decorator_list", ())}
    return sorted(names.intersection(KINDS))


def signature(function: Function) -> inspect.Signature:
    """A function's parameters; None stands for every default."""
    given = copy.deepcopy(function.args)
    for one in ast.walk(given):
        if isinstance(one, ast.arg):
            one.annotation = None
    given.defaults = [ast.Constant(None) for _ in given.defaults]
    given.kw_defaults = [one and ast.Constant(None) for one in given.kw_defaults]
    alike = ast.fix_missing_locations(ast.Expression(ast.Lambda(given, ast.Constant(None))))
    return inspect.signature(eval(compile(alike, "<signature>", "eval")))


def shown(node: ast.AST) -> str:
    """How a function is called, or whether a field has a default."""
    if isinstance(node, Function):
        return " ".join([*kinds(node), str(signature(node))])
    return "a field" if getattr(node, "value", None) is None else "a field with a default"


def abstract(members: Names) -> set[str]:
    return {name for name, node in members.items() if "abstractmethod" in kinds(node)}


def unlike(standin: Sources, module: str, genuine: Sources) -> Iterator[str]:
    """What a stand-in of a module has and the genuine one lacks, or has otherwise."""
    for name, mine in standin.names(module).items():
        if isinstance(mine, ast.ClassDef):
            theirs = genuine.members(module, name) or {}
            for lacking in sorted(abstract(theirs) - (standin.members(module, name) or {}).keys()):
                yield f"{name} lacks {lacking}, which is abstract"
            both = {f"{name}.{one}": (it, theirs.get(one)) for one, it in named(mine.body).items()}
        elif isinstance(mine, Function):
            found = genuine.find(module, name)
            both = {name: (mine, found and found.node)}
        else:
            continue
        for what, (mine, its) in both.items():
            if its is None:
                yield f"{what} is missing"
            elif shown(its) != shown(mine):
                yield f"{what} is {shown(its)}, not {shown(mine)}"


class Builder(ast.NodeVisitor):
    """Collects in ``problems`` what a module uses of vLLM that is missing or not so."""

    def __init__(self, text: str, genuine: Sources) -> None:
        self.problems: list[str] = []
        self._genuine = genuine
        self._imported: dict[str, tuple[str, str]] = {}
        self._configs: dict[str, str] = {}
        #: The members of a class, and of vLLM's that it derives from.
        self._own: Names = {}
        self._base: Names | None = None
        self.visit(ast.parse(text))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = str(node.module)
        for alias in node.names if of_vllm(node) else ():
            self._imported[alias.asname or alias.name] = module, alias.name
            if self._genuine.find(module, alias.name) is None:
                self.problems.append(f"{module}.{alias.name} is missing")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [self._imported[bare(one)] for one in node.bases if bare(one) in self._imported]
        self._base = self._genuine.members(*bases[0]) if bases else None
        self._own = own_members(node)
        for name in sorted(abstract(self._base or {}) - self._own.keys()):
            self.problems.append(f"{node.name} lacks {name}, which is abstract")
        for name, mine in self._own.items():
            theirs = (self._base or {}).get(name)
            if isinstance(theirs, Function) and isinstance(mine, Function):
                was, now = signature(theirs), signature(mine)
                if str(was) != str(now):
                    self.problems.append(f"{node.name}.{name} is {now}, and vLLM's {was}")
        self.generic_visit(node)
        self._base = None

    def visit_Assign(self, node: ast.Assign) -> None:
        """Know what is called ``parallel`` after ``parallel = vllm_config.parallel_config``."""
        pairs = [(node.targets[0], node.value)]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
        for target, value in pairs:
            if isinstance(value, ast.Attribute) and value.attr.endswith("_config"):
                self._configs[ast.unparse(target)] = value.attr
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        members = self._members(node.value)
        if members is not None and node.attr not in members and not node.attr.startswith("__"):
            self.problems.append(f"{ast.unparse(node)} is missing")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        function, first = None, []
        if isinstance(node.func, ast.Attribute):
            function = (self._members(node.func.value) or {}).get(node.func.attr)
            first = [] if "staticmethod" in kinds(function) else [None]
        elif imported := self._imported.get(ast.unparse(node.func)):
            found = self._genuine.find(*imported)
            function = found and found.node
        if isinstance(function, Function):
            words = {str(one.arg): one for one in node.keywords}
            try:
                signature(function).bind(*first, *node.args, **words)
            except TypeError as error:
                self.problems.append(f"{ast.unparse(node)}: {error}")

    def _members(self, node: ast.expr) -> Names | None:
        """The members of what an expression is; None if it is nothing of vLLM."""
        text = ast.unparse(node)
        if text == "vllm":
            return self._genuine.names("vllm")
        if text == "super()":
            return self._base
        if text == "self":
            return self._base and self._base | self._own
        name = text.rpartition(".")[2]
        name = self._configs.get(name, name)
        if name.endswith("_config") and name != "hf_config":  # that one is of transformers
            return self._genuine.members("vllm.config", name.title().replace("_", "")) or {}
        known = self._imported.get(text) or CALLED.get(text)
        return self._genuine.members(*known) if known else None
