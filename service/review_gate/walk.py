"""Reads the statements of one function in their order: where a transaction begins and ends, what
variables hold, and everything that is awaited or called in between."""

import ast

from service.review_gate.awaits import Awaits
from service.review_gate.frame import Frame
from service.review_gate.held import ENTERS
from service.review_gate.syntax import called_name, lines_of, path_of, paths_of, shown
from service.review_gate.transactions import decorating


class Walk(ast.NodeVisitor):
    """What is defined inside runs elsewhere: functions, lambdas and classes are passed over."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._awaits = Awaits(frame)
        self._awaited: ast.expr | None = None

    def run(self) -> None:
        """Read the function, or the module's own statements."""
        frame, function = self._frame, self._frame.function
        if function is None:
            self._visit_all(frame.module.source.tree.body)
            return
        if (decorator := decorating(function)) is not None:
            paths = frame.opened_by(decorator) or frozenset()
            lines = lines_of(decorator) | lines_of(function.node)
            frame.open(decorator, paths, None, lines=lines, is_async=function.is_async)
        self._visit_all(function.node.body)

    @property
    def _is_inside(self) -> bool:
        return self._frame.held.transaction is not None

    def _visit_all(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

    def visit(self, node: ast.AST) -> None:
        """Remembers the statement, whose lines may hold the comment that lets it pass."""
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        around, self._frame.statement = self._frame.statement, node
        super().visit(node)
        self._frame.statement = around

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Passed over, as are the next ones."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Passed over."""

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Passed over."""

    def visit_With(self, node: ast.With) -> None:
        """Its transaction ends with it, unless an AsyncExitStack from outside keeps it open."""
        self._with(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        """As `with`."""
        self._with(node)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        before = self._frame.held
        is_async = isinstance(node, ast.AsyncWith)
        for item in node.items:
            self.visit(item.context_expr)
            self._enter(item.context_expr, item.optional_vars, lines_of(node), is_async=is_async)
        self._visit_all(node.body)
        names = frozenset().union(*(paths_of(item.optional_vars) for item in node.items))
        stack = self._frame.held.stack
        if before.transaction is not None or stack is None or stack in names:
            self._frame.held = before

    def _enter(
        self,
        expr: ast.expr,
        target: ast.expr | None,
        lines: frozenset[int],
        *,
        is_async: bool,
        stack: str | None = None,
    ) -> None:
        frame = self._frame
        paths = frame.opened_by(expr)
        is_savepoint = paths is not None and bool(paths & frame.held.connections)
        if self._is_inside and is_async and not is_savepoint:
            self._awaits.entered(expr)
        if paths is not None:
            frame.open(expr, paths, target, lines=lines, is_async=is_async, stack=stack)
        else:
            frame.enter(target, expr)

    def visit_Assign(self, node: ast.Assign) -> None:
        """The value first, then its names."""
        self.visit(node.value)
        for target in node.targets:
            self._frame.assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """As an assignment."""
        if node.value is not None:
            self.visit(node.value)
            self._frame.assign(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """As an assignment."""
        self.visit(node.value)
        self._frame.assign(node.target, node.value)

    def visit_For(self, node: ast.For) -> None:
        """What it yields is bound anew each time."""
        self._iterate(node.iter, node.target, is_async=False)
        self._visit_all([*node.body, *node.orelse])

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        """What it iterates over is awaited."""
        self._iterate(node.iter, node.target, is_async=True)
        self._visit_all([*node.body, *node.orelse])

    def _iterate(self, iterable: ast.expr, target: ast.expr, *, is_async: bool) -> None:
        if is_async:
            self._await(iterable)
        else:
            self.visit(iterable)
        self._frame.loop(target)

    def _await(self, expr: ast.expr) -> None:
        if self._is_inside:
            self._awaits.awaited(expr)
            self._awaited = expr
        self.visit(expr)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        """The loops first, then what they make; their variables are known only inside."""
        self._comprehension(node, node.elt)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        """As a list's."""
        self._comprehension(node, node.elt)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        """As a list's, as if it were used up at once."""
        self._comprehension(node, node.elt)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        """As a list's."""
        self._comprehension(node, node.key, node.value)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, *made: ast.expr
    ) -> None:
        before = self._frame.held
        for loop in node.generators:
            self._iterate(loop.iter, loop.target, is_async=bool(loop.is_async))
            for condition in loop.ifs:
                self.visit(condition)
        for one in made:
            self.visit(one)
        self._frame.held = before

    def visit_Await(self, node: ast.Await) -> None:
        """The heart of it. `await conn.begin()` has no block, but counts for a review."""
        if isinstance(node.value, ast.Call) and called_name(node.value).startswith("begin"):
            self._frame.module.transaction_lines.add(node.lineno)
        self._await(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        """Of a plain function whose caller awaits what it returns."""
        if node.value is not None and self._frame.is_awaited:
            self._await(node.value)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """What it starts, whether it blocks, and the function of this module that it leads to."""
        self.generic_visit(node)
        owner = path_of(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if called_name(node) in ENTERS and node.args:
            is_async = called_name(node) == "enter_async_context"
            self._enter(node.args[0], None, lines_of(node), is_async=is_async, stack=owner)
        elif called_name(node) == "append" and isinstance(node.func, ast.Attribute):
            self._frame.variables.forget(node.func.value)  # it is more than it was
        if self._is_inside:
            self._call_inside(node)

    def _call_inside(self, node: ast.Call) -> None:
        frame = self._frame
        is_started = self._awaits.started(node)
        is_run_sync = called_name(node) == "run_sync" and frame.held.belongs(node)
        if (is_run_sync or called_name(node) == "map") and node.args:
            if isinstance(node.args[0], ast.Lambda):
                self.visit(node.args[0].body)
            made = ast.Call(func=node.args[0], args=node.args[1:], keywords=[])
            node = ast.copy_location(made, node)
        for function in frame.callees(node.func) or frame.methods_of_object(node.func):
            if not function.is_async:
                frame.follow(function, node)
        is_awaited = node is self._awaited or is_started
        if not is_awaited and frame.module.imports.is_blocking(node, frame.maker_of):
            frame.report("blocking-call", node, f"`{shown(node)}` blocks")
