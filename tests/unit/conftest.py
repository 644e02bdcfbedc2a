"""Pure tests: the same examples in every run, no database of examples, no deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", max_examples=50, derandomize=True, database=None, deadline=None)
settings.load_profile("unit")
