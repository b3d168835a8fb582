"""Small questions to the syntax tree."""

import ast
from collections.abc import Iterator

SHOWN_MAX_CHARS = 80

_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def words(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


def path_of(expr: ast.AST | None) -> str | None:
    """`a.b["c"]` as one string, None for what is not a name, an attribute or an item of one."""
    match expr:
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Name(id="super")):
            return "super()"
        case ast.Attribute(value=value, attr=attr):
            prefix = path_of(value)
            return prefix and f"{prefix}.{attr}"
        case ast.Subscript(value=value, slice=key):
            prefix = path_of(value)
            return prefix and f"{prefix}[{ast.unparse(key)}]"
    return None


def root_of(path: str) -> str:
    """The name that a path begins with."""
    return path.partition(".")[0].partition("[")[0]


def paths_of(target: ast.AST | None) -> frozenset[str]:
    """The paths that an assignment, or an `as`, binds."""
    if isinstance(target, ast.Tuple | ast.List):
        return frozenset().union(*(paths_of(one) for one in target.elts))
    path = path_of(target.value if isinstance(target, ast.Starred) else target)
    return frozenset([path] if path else [])


def called_name(call: ast.Call) -> str:
    """The last name of what is called: `c` of `a.b.c()`; empty when it has none."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """What is passed, by position or by name."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below that runs with `node`: not what functions, lambdas and classes hold."""
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        one = waiting.pop()
        yield one
        if not isinstance(one, _OWN_SCOPE):
            waiting.extend(ast.iter_child_nodes(one))


def statements_of(node: ast.AST, *, in_all_scopes: bool = False) -> Iterator[ast.stmt]:
    """Every statement below, those inside functions and classes only `in_all_scopes`."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(one, name, ())
            for inner in below if isinstance(below, list) else ():
                if isinstance(inner, ast.stmt):
                    yield inner
                if in_all_scopes or not isinstance(inner, _OWN_SCOPE):
                    waiting.append(inner)


def lines_of(node: ast.stmt | ast.expr) -> frozenset[int]:
    """The lines of an expression or a statement; of a compound statement, those of its head."""
    last = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        last = max(node.lineno, body[0].lineno - 1)
    return frozenset(range(node.lineno, last + 1))


def shown(expr: ast.AST) -> str:
    """The code on one line, cut where it is long."""
    text = " ".join(ast.unparse(expr).split())
    return text if len(text) <= SHOWN_MAX_CHARS else text[: SHOWN_MAX_CHARS - 1] + "…"
