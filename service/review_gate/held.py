"""What is held while a transaction is open: the connection under its names, and what it gave."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from service.review_gate.syntax import arguments_of, called_name, path_of, paths_of, words

# Methods of a connection or session that give rows and values, which are not its own any more.
_GIVES_DATA = words(
    """
    all fetch fetch_all fetch_one fetch_row fetch_val fetchall fetchmany fetchone fetchrow fetchval
    first get get_one iterate merge one one_or_none scalar scalar_one scalar_one_or_none
    """
)
# … and those that give something to work with in its place.
_GIVES_CONNECTION = words(
    "acquire begin begin_nested connect connection cursor execution_options get_raw_connection "
    "transaction"
)
# A Database of the library `databases` runs these on the connection that its task has.
_OF_DATABASES = words("execute execute_many fetch_all fetch_one fetch_val iterate")
ENTERS = frozenset({"enter_async_context", "enter_context"})


@dataclass(frozen=True, slots=True)
class Transaction:
    """The block; `lines` are those of the `with`."""

    line: int
    opened_by: str
    lines: frozenset[int]
    is_async: bool


@dataclass(frozen=True, slots=True)
class Held:
    """Paths that are the connection, and paths that are results of it.

    `self` as a connection means its own methods, not the methods of whatever else it holds.
    `stack`: the AsyncExitStack that ends the transaction, if one does.
    """

    transaction: Transaction | None = None
    connections: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    stack: str | None = None

    def belongs(self, expr: ast.expr) -> bool:
        """Whether `expr` is work of the connection or of its results."""
        path = path_of(expr)
        if path is not None:
            return _is_under(path, self.connections | self.results)
        match expr:
            case ast.Call(func=ast.Attribute(value=value)):
                return self.belongs(value)
            case ast.Await(value=value) | ast.Attribute(value=value) | ast.Subscript(value=value):
                return self.belongs(value)
        return False

    def hands(self, expr: ast.expr | None) -> bool:
        """Whether whoever gets `expr` has the connection to work with."""
        path = path_of(expr)
        if path is not None:
            return _is_under(path, self.connections)
        match expr:
            case ast.Call():
                return self._hands_call(expr)
            case ast.Await(value=ast.Call() as call):
                return called_name(call) in _GIVES_CONNECTION and self._hands_call(call)
            case ast.Starred(value=value) | ast.NamedExpr(value=value):
                return self.hands(value)
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Dict(values=elements):
                return any(self.hands(one) for one in elements)
            case ast.IfExp(body=one, orelse=other):
                return self.hands(one) or self.hands(other)
            case ast.Lambda(body=body):
                return self.is_mentioned_in(body)
        return False

    def _hands_call(self, call: ast.Call) -> bool:
        """Of one of its methods, whose coroutine is passed on, or of what takes the connection."""
        if isinstance(call.func, ast.Attribute) and self.hands(call.func.value):
            is_coroutine = self.transaction is None or self.transaction.is_async
            return is_coroutine or call.func.attr in _GIVES_CONNECTION
        return any(self.hands(one) for one in arguments_of(call))

    def is_mentioned_in(self, node: ast.AST) -> bool:
        """Whether the code below `node` has to do with the connection."""
        return any(
            isinstance(one, ast.Name | ast.Attribute) and self.hands(one) for one in ast.walk(node)
        )

    def bind(self, target: ast.AST, value: ast.expr | None) -> "Held":
        """After `target = value`; None: after a loop over something has bound it."""
        names = paths_of(target)
        bare = replace(self, connections=self.connections - names, results=self.results - names)
        return bare._add(names, self._kind(value))

    def bind_entered(self, target: ast.AST | None, entered: ast.expr) -> "Held":
        """After `with entered as target`."""
        if self.belongs(entered) or self.hands(entered):
            return replace(self, connections=self.connections | paths_of(target))
        return self.bind(target, None) if target else self

    def derive(self, assigned: Mapping[str, ast.expr]) -> "Held":
        """With what had been made of the connection before the transaction began."""
        held = self
        for name, value in assigned.items():
            held = held._add(frozenset([name]), held._kind(value))
            if name in self.connections:
                held = replace(held, connections=held.connections | _same_connection(value))
        return held

    def _add(self, names: frozenset[str], kind: str | None) -> "Held":
        if kind == "connection":
            return replace(self, connections=self.connections | names)
        return replace(self, results=self.results | names) if kind == "result" else self

    def _kind(self, value: ast.expr | None) -> str | None:
        call = value.value if isinstance(value, ast.Await) else value
        if not isinstance(call, ast.Call):
            return self._kind_of_path(call)
        name = called_name(call)
        if name in ENTERS and call.args:
            return "connection" if self.hands(call.args[0]) else None
        if isinstance(call.func, ast.Attribute) and self.belongs(call.func.value):
            if name in _GIVES_DATA:
                return None
            return "connection" if name in _GIVES_CONNECTION else "result"
        if any(self.hands(one) for one in arguments_of(call)):
            return "result" if isinstance(value, ast.Await) else "connection"
        return None

    def _kind_of_path(self, value: ast.expr | None) -> str | None:
        path = path_of(value)
        if path is None:
            return None
        if _is_under(path, self.connections):
            return "connection"
        return "result" if _is_under(path, self.results) else None


def _same_connection(value: ast.expr) -> frozenset[str]:
    """What else means the connection that is `value`."""
    match value:
        case ast.Call(func=ast.Attribute(value=database, attr="connection")):
            path = path_of(database)
            return frozenset(f"{path}.{name}" for name in _OF_DATABASES if path)
    return paths_of(value)


def _is_under(path: str, names: frozenset[str]) -> bool:
    return path in names or any(
        path.startswith((f"{name}.", f"{name}["))
        for name in names
        if name not in ("self", "cls", "super()")
    )
