"""Settings for the tests of the schema language."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no reason to fail.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
