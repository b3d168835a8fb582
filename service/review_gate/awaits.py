"""Decides what is awaited inside a transaction: work of the connection, a function of this module
that has to be read, or something else, which is an error."""

import ast
from collections.abc import Sequence

from service.review_gate.frame import Frame
from service.review_gate.held import ENTERS
from service.review_gate.syntax import arguments_of, called_name, path_of, shown, words

# Entering one of these waits for nothing.
_HARMLESS_CONTEXTS = words(
    """
    anyio.create_task_group async_timeout.timeout asyncio.TaskGroup asyncio.timeout
    asyncio.timeout_at contextlib.AsyncExitStack contextlib.nullcontext trio.open_nursery
    """
)
_NURSERIES = frozenset({"anyio.create_task_group", "asyncio.TaskGroup", "trio.open_nursery"})
_CHECKPOINTS = frozenset({"anyio.lowlevel.checkpoint", "trio.lowlevel.checkpoint"})
_SLEEPS = frozenset({"anyio.sleep", "asyncio.sleep", "trio.sleep"})
# They run the coroutines that they are given: the first argument, or all of them.
_RUN_FIRST = words(
    """
    asyncio.as_completed asyncio.run asyncio.shield asyncio.wait asyncio.wait_for
    contextlib.aclosing anext aiter
    """
)
_RUN_FIRST_METHODS = frozenset({"create_task", "ensure_future", "run_until_complete"})
_RUN_ALL = frozenset({"asyncio.gather"})
# They are given a function and its arguments.
_CALL_FIRST = frozenset({"anyio.from_thread.run", "anyio.run", "trio.from_thread.run", "trio.run"})
_DJANGO_METHODS = words(
    """
    aadd aaggregate abulk_create abulk_update aclear acontains acount acreate adelete aearliest
    aexists afirst aget aget_or_create ain_bulk alast alatest arefresh_from_db aremove asave aset
    aupdate aupdate_or_create
    """
)


class Awaits:
    """The decision over one function's frame, while it holds a transaction."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._looked_at: set[str] = set()  # variables that may lead back to themselves

    def awaited(self, expr: ast.expr, at: ast.expr | None = None) -> None:
        """`await expr`; a finding is placed `at` where it is not at `expr` itself."""
        self._frame.module.step()
        match expr:
            case ast.IfExp(body=one, orelse=other):
                self.awaited(one, at)
                self.awaited(other, at)
            case ast.Call():
                self._called(expr, at)
            case ast.Name() if self._is_variable(expr):
                self._variable(expr, at)
            case _ if not (self._frame.held.belongs(expr) or _is_of_orm(expr)):
                self._report(expr, at)

    def entered(self, expr: ast.expr) -> None:
        """`async with expr`."""
        value = self._frame.value_of(expr.id) if isinstance(expr, ast.Name) else expr
        if not (isinstance(value, ast.Call) and self._enters_known(value)):
            self.awaited(expr)

    def _enters_known(self, call: ast.Call) -> bool:
        """Whether it is harmless, or a class of this module, whose `__aenter__` is read then."""
        if self._origin(call.func) in _HARMLESS_CONTEXTS:
            return True
        methods = self._frame.module.scopes.methods
        name = called_name(call) if isinstance(call.func, ast.Name) else None
        ends = [*methods(name, "__aenter__"), *methods(name, "__aexit__")]
        for function in ends:
            self._frame.follow(function, ast.copy_location(_call(call.func, []), call))
        return bool(ends)

    def started(self, call: ast.Call, at: ast.expr | None = None) -> bool:
        """Whether `call` runs what it is given, as gather and start_soon do; looks at that."""
        name, origin = called_name(call), self._origin(call.func)
        if name == "start_soon" or (name == "start" and self._is_of_nursery(call.func)):
            self._runs(call.args, call, at)
        elif origin in _RUN_FIRST or name in _RUN_FIRST_METHODS:
            self._run(call.args[:1], at)
        elif origin in _RUN_ALL:
            self._run(call.args, at)
        elif origin in _CALL_FIRST:
            self._runs(call.args, call, at)
        elif isinstance(call.func, ast.Call) and called_name(call.func) == "async_to_sync":
            self._runs([*call.func.args[:1], *call.args], call, at)
        else:
            return name in ENTERS  # the walk sees to what is entered
        return True

    def _called(self, call: ast.Call, at: ast.expr | None) -> None:
        if self.started(call, at):
            return
        frame = self._frame
        functions = frame.callees(call.func)
        for function in functions:
            frame.follow(function, call, is_awaited=True)
        if not (functions or self._is_allowed(call)):
            self._report(call, at)

    def _is_allowed(self, call: ast.Call) -> bool:
        held = self._frame.held
        if held.belongs(call) or held.hands(call) or held.hands(call.func):
            return True
        if _is_of_orm(call) or self._is_of_django(call) or self._takes_closure(call):
            return True
        origin = self._origin(call.func)
        is_zero = [ast.unparse(one) for one in call.args] == ["0"]
        return origin in _CHECKPOINTS or (origin in _SLEEPS and is_zero)

    def _is_of_django(self, call: ast.Call) -> bool:
        transaction = self._frame.held.transaction
        is_implicit = transaction is not None and "atomic" in transaction.opened_by
        return is_implicit and called_name(call) in _DJANGO_METHODS

    def _takes_closure(self, call: ast.Call) -> bool:
        """Whether a function from around here is passed that has the connection; it is read too."""
        given = [*arguments_of(call), *(call.func.args if isinstance(call.func, ast.Call) else [])]
        functions = [one for value in given for one in self._frame.callees(value)]
        for function in functions:
            self._frame.follow(function, ast.copy_location(_call(given[0], []), call))
        return any(
            one.outer is not None and self._frame.held.is_mentioned_in(one.node)
            for one in functions
        )

    def _run(self, coroutines: Sequence[ast.expr], at: ast.expr | None) -> None:
        for one in coroutines:
            match one:
                case ast.Starred(value=value):
                    self._run([value], at)
                case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                    self._run(elements, at)
                case (
                    ast.ListComp(elt=element)
                    | ast.SetComp(elt=element)
                    | ast.GeneratorExp(elt=element)
                ):
                    self._run([element], at)
                case _ if not self._frame.held.belongs(one):
                    self.awaited(one, at)

    def _runs(self, given: Sequence[ast.expr], call: ast.Call, at: ast.expr | None) -> None:
        """A function and its arguments."""
        match list(given):
            case [ast.Lambda(body=body), *_]:
                self.awaited(body, at)
            case [ast.Call(args=[function, *first]) as partial, *rest] if (
                called_name(partial) == "partial"
            ):
                made = _call(function, [*first, *rest], partial.keywords)
                self._called(ast.copy_location(made, call), at)
            case [function, *rest]:
                self._called(ast.copy_location(_call(function, rest), call), at)

    def _is_variable(self, name: ast.Name) -> bool:
        is_new = name.id not in self._looked_at and not self._frame.held.belongs(name)
        return is_new and self._frame.value_of(name.id) is not None

    def _variable(self, name: ast.Name, at: ast.expr | None) -> None:
        """A coroutine or task.

        A task that was started inside the transaction has been looked at there.
        """
        value = self._frame.value_of(name.id)
        assert value is not None  # noqa: S101 - see _is_variable
        self._looked_at.add(name.id)
        if isinstance(value, ast.Await):
            self._report(name, at)
        else:
            is_started = isinstance(value, ast.Call) and not self._frame.is_early(value)
            self._run([value], None if is_started else at or name)
        self._looked_at.discard(name.id)

    def _is_of_nursery(self, callee: ast.expr) -> bool:
        path = path_of(callee.value) if isinstance(callee, ast.Attribute) else None
        value = self._frame.value_of(path) if path else None
        return isinstance(value, ast.Call) and self._origin(value.func) in _NURSERIES

    def _origin(self, callee: ast.expr) -> str:
        return self._frame.module.imports.origin(callee)

    def _report(self, expr: ast.expr, at: ast.expr | None) -> None:
        self._frame.report("foreign-await", at or expr, f"`{shown(expr)}` is awaited")


def _call(
    function: ast.expr, args: list[ast.expr], keywords: Sequence[ast.keyword] = ()
) -> ast.Call:
    return ast.Call(func=function, args=args, keywords=list(keywords))


def _is_of_orm(expr: ast.expr | None) -> bool:
    """Whether it is SQLAlchemy's `row.awaitable_attrs` or Django's `Model.objects`, which know
    their connection themselves."""
    while expr is not None:
        match expr:
            case ast.Attribute(attr="awaitable_attrs"):
                return True
            case ast.Attribute(value=model, attr="objects"):
                name = (path_of(model) or "").rpartition(".")[2]
                return name[:1].isupper() or name in ("cls", "model")
            case ast.Attribute(value=inner) | ast.Call(func=inner) | ast.Await(value=inner):
                expr = inner
            case _:
                return False
    return False
