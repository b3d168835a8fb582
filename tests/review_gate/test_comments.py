"""`# review-gate: ok — reason`: what it lets pass, and what becomes of one that is wrong."""

from pathlib import Path

import pytest

from tests.review_gate.snippets import check


@pytest.mark.parametrize("separator", ["—", "-", "--", ":", " — ", ": "])
def test_a_comment_with_a_reason_lets_its_line_pass(separator: str, tmp_path: Path) -> None:
    code = f"""
        async def f(db):
            async with db.transaction() as conn:
                await bus.publish(1)  # noqa: X  # review-gate: ok{separator}local, 1 ms
        """
    (found,) = check(tmp_path, code)
    assert (found.kind, found.line, found.reason) == ("passed", 4, "local, 1 ms")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            """
            async def f(db):
                async with db.transaction() as conn:
                    await bus.publish(
                        1,  # review-gate: ok — any line of the statement
                    )
            """,
            id="inside the statement",
        ),
        pytest.param(
            """
            async def f(db):
                async with db.transaction() as conn:  # review-gate: ok — the whole block
                    await bus.publish(1)
            """,
            id="the with",
        ),
        pytest.param(
            """
            async def f(db):
                async with db.transaction() as conn:
                    # review-gate: ok — the line above
                    # and more about it

                    await bus.publish(1)
            """,
            id="alone, above",
        ),
        pytest.param(
            """
            async def f(db):
                async with (
                    db.transaction() as conn,  # review-gate: ok — the whole block
                    lock,
                ):
                    pass
            """,
            id="a with of several lines",
        ),
        pytest.param(
            """
            async def f(db):
                async with db.transaction() as conn:
                    await helper()  # review-gate: ok — the way to it

            async def helper():
                await bus.publish(1)
            """,
            id="the call of the helper",
        ),
        pytest.param(
            """
            async def f(db):
                async with db.transaction() as conn:
                    await helper()

            async def helper():
                await bus.publish(1)  # review-gate: ok — in the helper
            """,
            id="the helper",
        ),
    ],
)
def test_where_it_may_stand(code: str, tmp_path: Path) -> None:
    assert [one.kind for one in check(tmp_path, code)] == ["passed"]


def test_it_lets_nothing_else_pass(tmp_path: Path) -> None:
    code = """
        async def f(db):
            async with db.transaction() as conn:
                await bus.publish(1)  # review-gate: ok — this one
                for row in rows:  # review-gate: ok — not what the loop holds
                    await bus.publish(row)
        """
    found = [(one.kind, one.line) for one in check(tmp_path, code)]
    assert found == [("passed", 4), ("unused", 5), ("error", 6)]


@pytest.mark.parametrize("wrong", ["ok", "ok —", "ok - !", "okay — it is", "ignore", "", "reason"])
def test_without_a_reason_it_is_an_error_itself(wrong: str, tmp_path: Path) -> None:
    code = f"""
        async def f(db):
            async with db.transaction() as conn:
                await bus.publish(1)  # review-gate: {wrong}
        """
    found = [(one.kind, one.rule) for one in check(tmp_path, code)]
    assert found == [("error", "foreign-await"), ("error", "no-reason")]


def test_one_that_lets_nothing_pass_is_told(tmp_path: Path) -> None:
    code = """
        x = 1  # review-gate: ok — there once was a transaction
        text = "# review-gate: ok — a string is no comment"
        """
    (found,) = check(tmp_path, code)
    assert (found.kind, found.line) == ("unused", 2)


def test_a_review_is_not_let_pass(tmp_path: Path) -> None:
    code = """
        import httpx  # review-gate: ok — trust me

        async def f(db):
            async with db.transaction() as conn:
                await conn.execute("SELECT 1")
        """
    assert [one.kind for one in check(tmp_path, code)] == ["review", "unused"]
