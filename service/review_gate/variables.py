"""What the variables of one function were last assigned, as far as it is read."""

import ast

from service.review_gate.syntax import paths_of


class Variables:
    """Paths and the expressions behind them; of several branches the last one counts."""

    def __init__(self) -> None:
        self.assigned: dict[str, ast.expr] = {}

    def assign(self, target: ast.AST, value: ast.expr) -> None:
        """`target = value`, or `with value as target`."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self.assign(one, other)
            return
        self.forget(target)
        if not isinstance(target, ast.Tuple | ast.List):
            self.assigned.update(dict.fromkeys(paths_of(target), value))

    def forget(self, target: ast.AST) -> None:
        """Bound to something unknown."""
        for path in paths_of(target):
            self.assigned.pop(path, None)
