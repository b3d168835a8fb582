"""The functions of one module, and which of them a call leads to.

Found are functions by their name, methods by `self`, `cls`, `super()` or the name of their class.
What other objects are, only annotations say; that is asked for calls that may block.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from service.review_gate.syntax import own_nodes, path_of, statements_of

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Function:
    """A function or method; `outer` is the function that it is defined in."""

    node: FunctionNode
    class_name: str | None
    outer: "Function | None"
    inner: dict[str, list["Function"]] = field(default_factory=dict)

    @property
    def is_async(self) -> bool:
        """Whether a call of it only makes a coroutine or an asynchronous generator."""
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def parameters(self) -> list[str]:
        """By position; `self` is left out."""
        names = [one.arg for one in (*self.node.args.posonlyargs, *self.node.args.args)]
        return names[1:] if self._takes_self else names

    @cached_property
    def names(self) -> frozenset[str]:
        """What it calls its own: parameters, and what it assigns or imports."""
        own = {one.arg for one in ast.walk(self.node.args) if isinstance(one, ast.arg)}
        for node in own_nodes(self.node):
            match node:
                case ast.Name(id=name, ctx=ast.Store()):
                    own.add(name)
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                    own.update((one.asname or one.name).partition(".")[0] for one in aliases)
        return frozenset(own)

    @cached_property
    def annotations(self) -> dict[str, ast.expr]:
        """What its parameters are annotated with."""
        arguments = [one for one in ast.walk(self.node.args) if isinstance(one, ast.arg)]
        return {one.arg: one.annotation for one in arguments if one.annotation is not None}

    @cached_property
    def is_stub(self) -> bool:
        """Whether the real one is elsewhere: an abstract method, a protocol's, an overload."""
        return all(
            isinstance(one.exc, ast.Name | ast.Call) and "NotImplemented" in ast.unparse(one.exc)
            if isinstance(one, ast.Raise)
            else isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
            for one in self.node.body
        )

    @property
    def _takes_self(self) -> bool:
        decorators = [one.id for one in self.node.decorator_list if isinstance(one, ast.Name)]
        return self.class_name is not None and "staticmethod" not in decorators


@dataclass
class _Class:
    bases: list[str]
    fields: dict[str, ast.expr]
    annotations: dict[str, ast.expr]
    methods: dict[str, list[Function]] = field(default_factory=dict)

    def learn(self, method: Function) -> None:
        """What it assigns, and the annotations of parameters that become attributes."""
        for path, value in _assigned_in(method.node):
            self.fields[path] = value
            if isinstance(value, ast.Name) and value.id in method.annotations:
                self.annotations[path] = method.annotations[value.id]


class Scopes:
    """All functions of a module."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions: list[Function] = []
        self._top: dict[str, list[Function]] = {}
        self._classes: dict[str, _Class] = {}
        self.module_values = dict(_assigned_in(tree))
        self._collect(tree, None, None)

    def _collect(self, holder: ast.AST, class_name: str | None, outer: Function | None) -> None:
        for node in statements_of(holder):
            if isinstance(node, ast.ClassDef):
                bases = [one.id for one in node.bases if isinstance(one, ast.Name)]
                fields = {f"self.{path}": value for path, value in _assigned_in(node)}
                self._classes[node.name] = _Class(bases, fields, dict(_annotated_in(node)))
                self._collect(node, node.name, outer)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                function = Function(node, class_name, outer)
                self.functions.append(function)
                self._home(class_name, outer).setdefault(node.name, []).append(function)
                if class_name is not None:
                    self._classes[class_name].learn(function)
                self._collect(node, None, function)

    def _home(self, class_name: str | None, outer: Function | None) -> dict[str, list[Function]]:
        if class_name is not None:
            return self._classes[class_name].methods
        return self._top if outer is None else outer.inner

    def called(self, callee: ast.expr, within: Function | None) -> list[Function]:
        """The functions that `callee`, in the body of `within`, may mean."""
        match callee:
            case ast.Name(id=name):
                return self._by_name(name, within)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                return self.methods(_class_of(within), name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                return self.methods(_class_of(within), name, inherited_only=True)
            case ast.Attribute(value=ast.Name(id=class_name), attr=name):
                return self.methods(class_name, name)
        return []

    def methods(
        self, class_name: str | None, name: str, *, inherited_only: bool = False
    ) -> list[Function]:
        """Those of a class of this module, or else of its bases in this module."""
        line = [class_name] if class_name else []
        for one in line:  # grows as bases are met
            found = self._classes.get(one)
            if found is None:
                continue
            if name in found.methods and not (inherited_only and one == class_name):
                return found.methods[name]
            line += [base for base in found.bases if base not in line]
        return []

    def fields_of(self, method: Function | None) -> dict[str, ast.expr]:
        """What the class of a method assigns to `self.…`; its other names mean nothing outside."""
        found = self._classes.get(_class_of(method) or "")
        return found.fields if found else {}

    def annotation_of(self, path: str, within: Function | None) -> ast.expr | None:
        """The class that a parameter of `within`, or an attribute of its `self`, is said to be."""
        if within is not None and path in within.annotations:
            return within.annotations[path]
        found = self._classes.get(_class_of(within) or "")
        return found.annotations.get(path) if found else None

    def _by_name(self, name: str, within: Function | None) -> list[Function]:
        while within is not None:
            if name in within.inner:
                return within.inner[name]
            if name in within.names:
                return []
            within = within.outer
        return self._top.get(name, [])


def _assigned_in(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for one in statements_of(node):
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            for target in targets:
                if path := path_of(target):
                    yield path, one.value


def _annotated_in(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield f"self.{one.target.id}", one.annotation


def _class_of(function: Function | None) -> str | None:
    while function is not None and function.class_name is None:
        function = function.outer
    return function.class_name if function else None


def bind_arguments(function: Function, call: ast.Call) -> Iterable[tuple[str, ast.expr]]:
    """(parameter, what `call` passes for it); what `*` and `**` take goes by their own names."""
    rest = function.node.args.vararg
    names = function.parameters
    for index, value in enumerate(call.args):
        if index < len(names) and not isinstance(value, ast.Starred):
            yield names[index], value
        elif rest is not None:
            yield rest.arg, value
    known = {one.arg for one in (*function.node.args.args, *function.node.args.kwonlyargs)}
    others = function.node.args.kwarg
    for keyword in call.keywords:
        if keyword.arg in known:
            yield str(keyword.arg), keyword.value
        elif others is not None:
            yield others.arg, keyword.value
