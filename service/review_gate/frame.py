"""One function as it is read: what it holds, its variables, and the way that led into it."""

import ast
from dataclasses import replace

from service.review_gate.findings import Finding, Step
from service.review_gate.held import ENTERS, Held, Transaction
from service.review_gate.module import Module, Reading, Rule
from service.review_gate.scopes import Function, bind_arguments
from service.review_gate.syntax import called_name, lines_of, path_of, paths_of, root_of, shown
from service.review_gate.variables import Variables


class Frame:
    """What is known of a function at the statement that is read: it changes from one to the next.

    `is_awaited`: what it returns, it being no coroutine itself, is awaited by its caller.
    """

    def __init__(self, module: Module, reading: Reading) -> None:
        self.module = module
        self.function = reading.function
        self.held = reading.held
        self.variables = Variables()
        self.is_awaited = reading.is_awaited
        self.statement: ast.stmt | None = None
        self._way = reading.way
        self._lines = reading.lines

    def value_of(self, path: str) -> ast.expr | None:
        """What is behind a variable, a global or an attribute of `self`, None if not known."""
        if (value := self.variables.assigned.get(path)) is not None:
            return value
        root = root_of(path)
        if root == "self":
            return self.module.scopes.fields_of(self.function).get(path)
        if self.function is not None and root in self.function.names:
            return None
        return self.module.scopes.module_values.get(path)

    def maker_of(self, path: str) -> ast.expr | None:
        """What is behind `path`, or a call of the class that it is annotated with."""
        value = self.value_of(path)
        annotation = self.module.scopes.annotation_of(path, self.function)
        if annotation is None or isinstance(value, ast.Call):
            return value
        while isinstance(annotation, ast.BinOp):  # httpx.Client | None
            annotation = annotation.left
        return ast.Call(func=annotation, args=[], keywords=[])

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

    def methods_of_object(self, callee: ast.expr) -> list[Function]:
        """Those that `callee` means if it belongs to an object of a class of this module."""
        path = path_of(callee.value) if isinstance(callee, ast.Attribute) else None
        made = self.maker_of(path) if path else None
        if not (isinstance(callee, ast.Attribute) and isinstance(made, ast.Call)):
            return []
        return self.module.scopes.methods(path_of(made.func), callee.attr)

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
        self.module.step()
        step = Step(function.node.name, call.lineno)
        self.module.start(
            Reading(
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
            passed = path_of(value)
            if passed is None:
                continue
            if self.held.belongs(value) and name not in connections:
                results.add(name)
            connections |= {
                f"{name}.{path.removeprefix(f'{passed}.')}"
                for path in self.held.connections
                if path.startswith(f"{passed}.")
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

    def loop(self, target: ast.AST) -> None:
        """`for target in …`: a row, say, and not the connection."""
        self.held = self.held.bind(target, None)
        self.variables.forget(target)

    def enter(self, target: ast.AST | None, entered: ast.expr) -> None:
        """`with entered as target`."""
        self.held = self.held.bind_entered(target, entered)
        if target is not None:
            self.variables.assign(target, entered)
