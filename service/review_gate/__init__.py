"""The review gate: finds where Python code awaits something else while it holds a transaction.

`python -m service.review_gate PATH…` reads any code base as syntax trees; nothing of it is imported
or run, and nothing of `service` either. What it cannot read is a finding, never a crash.

It follows calls within a module only, and knows a transaction by its block: one that is begun and
committed by hand, or by a session on its own, it does not see. What runs in other modules is
trusted when it is given the connection; an ORM that hides it (Tortoise, Gino) needs the comment.
"""
