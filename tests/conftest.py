"""Settings for all tests: parsed schemas are kept in a folder of the test run, not in the user's cache."""

from __future__ import annotations

import os
import tempfile

os.environ["XDG_CACHE_HOME"] = os.path.join(tempfile.gettempdir(), f"ckptmorph-tests-{os.getuid()}")
