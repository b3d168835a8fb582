"""The tables: a pool with its guard, the migrations, and one module of SQL per table."""
