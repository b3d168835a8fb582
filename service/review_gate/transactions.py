"""Which expressions open a transaction, directly or through a function of the same module.

By name: `.begin()`, `.begin_nested()`, `.transaction()` and `atomic`, where they are entered by a
`with`. What else has such a method and is no database is told by a comment.
"""

import ast
from collections.abc import Callable, Iterator

from service.review_gate.held import ENTERS
from service.review_gate.scopes import Function, Scopes, bind_arguments
from service.review_gate.syntax import arguments_of, called_name, own_nodes, path_of, root_of

NAMES = frozenset({"begin", "begin_nested", "transaction", "atomic"})

ValueOf = Callable[[str], ast.expr | None]


def decorating(function: Function) -> ast.expr | None:
    """The decorator that runs all of `function` in a transaction: Django's `@atomic`, and what
    else can be entered and used as a decorator, as `@database.transaction()`."""
    return next((one for one in function.node.decorator_list if _decorates(one)), None)


def _decorates(expr: ast.expr) -> bool:
    if not isinstance(expr, ast.Call):
        return (path_of(expr) or "").rpartition(".")[2] == "atomic"
    if called_name(expr) == "method_decorator":
        return any(_decorates(one) for one in expr.args)
    return called_name(expr) in NAMES


class Transactions:
    """The functions of a module that open transactions for their callers."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._known: dict[Function, frozenset[str] | None] = {}

    def opened_by(
        self, expr: ast.expr, within: Function | None, value_of: ValueOf
    ) -> frozenset[str] | None:
        """The paths of the connection if a `with expr` opens a transaction, None if not."""
        path = path_of(expr)
        if path is None:
            return self._opened_by(expr, within)
        value = value_of(path)
        paths = self._opened_by(value, within) if value is not None else None
        return None if paths is None else paths | {path}

    def _opened_by(self, expr: ast.expr, within: Function | None) -> frozenset[str] | None:
        call = expr.value if isinstance(expr, ast.Await) else expr
        if not isinstance(call, ast.Call):
            return None
        if called_name(call) in NAMES:
            owners = arguments_of(call)
            if isinstance(call.func, ast.Attribute):
                owners = [call.func.value]
            return frozenset(path for one in owners if (path := path_of(one)))
        for function in self._scopes.called(call.func, within):
            paths = self._inside(function)
            if paths is not None:
                return frozenset(_seen_by_caller(paths, function, call))
        return None

    def _inside(self, function: Function) -> frozenset[str] | None:
        if function not in self._known:
            self._known[function] = None  # one that leads back to itself opens nothing
            found = (self._opened_by(one, function) for one in _handed_over(function))
            self._known[function] = next((paths for paths in found if paths is not None), None)
        return self._known[function]


def _handed_over(function: Function) -> Iterator[ast.expr]:
    """What is entered around a `yield`, or returned for the caller to enter."""
    is_generator = any(isinstance(one, ast.Yield) for one in own_nodes(function.node))
    for node in own_nodes(function.node):
        match node:
            case ast.With(items=items) | ast.AsyncWith(items=items):
                if any(isinstance(one, ast.Yield) for one in own_nodes(node)):
                    yield from (item.context_expr for item in items)
            case ast.Return(value=ast.expr() as value) if not is_generator:
                yield value
            case ast.Call() if is_generator and called_name(node) in ENTERS:
                yield from arguments_of(node)[:1]


def _seen_by_caller(paths: frozenset[str], function: Function, call: ast.Call) -> Iterator[str]:
    passed = {name: path_of(value) for name, value in bind_arguments(function, call)}
    for path in paths:
        root = root_of(path)
        if root in passed:
            if passed[root] is not None:
                yield f"{passed[root]}{path[len(root) :]}"
        elif root not in function.names or root == "self":
            yield path
