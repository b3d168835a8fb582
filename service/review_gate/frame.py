"""One function as it is read: what it holds, its variables, and the way that led into it."""

import ast
from collections import deque
from dataclasses import replace
from typing import Literal

from service.review_gate.clients import Imports
from service.review_gate.findings import Finding, Step
from service.review_gate.held import ENTERS, Held, Transaction
from service.review_gate.scopes import Function, Scopes, bind_arguments
from service.review_gate.sources import Source
from service.review_gate.syntax import called_name, lines_of, path_of, paths_of, root_of, shown
from service.review_gate.transactions import Transactions
from service.review_gate.variables import Variables

Rule = Literal["foreign-await", "blocking-call"]


class Module:
    """What all functions of a file share; `waiting`: those to be read inside a transaction."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.scopes = Scopes(source.tree)
        self.imports = Imports(source.tree)
        self.transactions = Transactions(self.scopes)
        self.transaction_lines: set[int] = set()
        self.findings: dict[tuple[int, int, int, Rule], Finding] = {}
        self.waiting: deque[Frame] = deque()
        self._started: set[tuple[Function, Held, bool]] = set()

    def start(self, frame: "Frame") -> None:
        """Have a function read, once for each transaction and each way to hold its connection."""
        if frame.function is not None:
            key = (frame.function, frame.held, frame.is_awaited)
            if key in self._started:
                return
            self._started.add(key)
        self.waiting.append(frame)


class Frame:
    """`is_awaited`: what it returns, it being no coroutine itself, is awaited by its caller."""

    def __init__(
        self,
        module: Module,
        function: Function | None,
        held: Held,
        *,
        way: tuple[Step, ...] = (),
        lines: frozenset[int] = frozenset(),
        is_awaited: bool = False,
    ) -> None:
        self.module = module
        self.function = function
        self.held = held
        self.variables = Variables()
        self.is_awaited = is_awaited
        self.statement: ast.stmt | None = None
        self._way = way
        self._lines = lines

    def value_of(self, path: str) -> ast.expr | None:
        """What is behind a variable, a global or an attribute of `self`, None if not known."""
        if (value := self.variables.value_of(path)) is not None:
            return value
        root = root_of(path)
        if root == "self":
            return self.module.scopes.fields_of(self.function).get(path)
        if self.function is not None and root in self.function.names:
            return None
        return self.module.scopes.module_values.get(path)

    def opened_by(self, expr: ast.expr) -> frozenset[str] | None:
        """The paths of the connection if a `with expr` opens a transaction, None if not."""
        return self.module.transactions.opened_by(expr, self.function, self.value_of)

    def is_early(self, value: ast.expr) -> bool:
        """Whether `value` was made before the transaction began."""
        transaction = self.held.transaction
        return not self._way and transaction is not None and value.lineno < transaction.line

    def callees(self, callee: ast.expr) -> list[Function]:
        """The functions of this module that `callee` means; abstract ones are not known."""
        found = self.module.scopes.called(callee, self.function)
        return [one for one in found if not one.is_stub]

    def open(
        self,
        by: ast.expr,
        paths: frozenset[str],
        target: ast.expr | None,
        *,
        lines: frozenset[int],
        is_async: bool,
        stack: str | None = None,
    ) -> None:
        """A transaction of the connection `paths` begins, with the connection `as target`."""
        names = paths_of(target)
        if target is not None:
            self.variables.assign(target, by)
        self.module.transaction_lines.add(by.lineno)
        if self.held.transaction is not None:
            self.held = replace(self.held, connections=self.held.connections | paths | names)
            return
        transaction = Transaction(by.lineno, shown(by), lines, is_async)
        # An object that holds the connection hands it to its own methods, if nothing else does.
        holders = {root_of(one) for one in paths if not names} & {"self", "cls"}
        held = Held(transaction, paths | names | holders, stack=stack)
        held = held.derive(self.variables.assigned)
        fields = held.derive(self.module.scopes.fields_of(self.function)).connections
        of_self = {one for one in fields if root_of(one) == "self"}
        self.held = replace(held, connections=held.connections | of_self)

    def follow(self, function: Function, call: ast.Call, *, is_awaited: bool = False) -> None:
        """Have the body of `function` read as a part of this transaction."""
        step = Step(function.node.name, call.lineno)
        self.module.start(
            Frame(
                self.module,
                function,
                self._held_in(function, call),
                way=(*self._way, step),
                lines=self._lines | self._lines_here(call),
                is_awaited=is_awaited and not function.is_async,
            )
        )

    def _held_in(self, function: Function, call: ast.Call) -> Held:
        connections = {
            path for path in self.held.connections if self._reaches(path, function, call)
        }
        results: set[str] = set()
        for name, value in bind_arguments(function, call):
            if self.held.hands(value):
                connections.add(name)
            elif path_of(value) and self.held.belongs(value):
                results.add(name)
            passed = f"{path_of(value)}."
            connections |= {
                f"{name}.{path.removeprefix(passed)}"
                for path in self.held.connections
                if path.startswith(passed)
            }
        return Held(self.held.transaction, frozenset(connections), frozenset(results))

    def _reaches(self, path: str, function: Function, call: ast.Call) -> bool:
        """Whether `path` means the same in the body of `function`, without being passed."""
        root = root_of(path)
        is_nested = function.outer is not None and function.class_name is None
        if root in ("self", "cls") and not is_nested:
            return isinstance(call.func, ast.Attribute) and root_of(
                path_of(call.func.value) or ""
            ) in ("self", "cls", "super()")
        if root in function.names:
            return False
        return is_nested or self.function is None or root not in self.function.names

    def report(self, rule: Rule, at: ast.expr, what: str) -> None:
        """An error at `at`, told once a transaction; `what`: "`f()` is awaited"."""
        transaction = self.held.transaction
        assert transaction is not None  # noqa: S101 - nothing is reported outside of one
        message = (
            f"{what} inside the transaction that `{transaction.opened_by}` opens in line "
            f"{transaction.line}"
        )
        key = (at.lineno, at.col_offset, transaction.line, rule)
        self.module.findings.setdefault(
            key,
            Finding(
                kind="error",
                rule=rule,
                path=self.module.source.path,
                line=at.lineno,
                column=self.module.source.column(at),
                message=message,
                transaction_line=transaction.line,
                way=self._way,
                lines=self._lines | self._lines_here(at) | transaction.lines,
            ),
        )

    def _lines_here(self, at: ast.expr) -> frozenset[int]:
        return lines_of(at) | (lines_of(self.statement) if self.statement else frozenset())

    def assign(self, target: ast.AST, value: ast.expr) -> None:
        """`target = value`."""
        self.held = self.held.bind(target, value)
        call = value.value if isinstance(value, ast.Await) else value
        entered = call.args if isinstance(call, ast.Call) and called_name(call) in ENTERS else []
        if any(self.opened_by(one) is not None for one in entered):
            self.held = replace(self.held, connections=self.held.connections | paths_of(target))
        self.variables.assign(target, value)

    def loop(self, target: ast.AST, iterable: ast.expr) -> None:
        """`for target in iterable`."""
        self.held = self.held.bind(target, None)
        self.variables.loop(target, iterable)

    def enter(self, target: ast.AST | None, entered: ast.expr) -> None:
        """`with entered as target`."""
        self.held = self.held.bind_entered(target, entered)
        if target is not None:
            self.variables.assign(target, entered)
