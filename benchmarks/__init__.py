"""Measurements: ``python -m benchmarks``. Only the standard library is loaded into the process that measures."""
