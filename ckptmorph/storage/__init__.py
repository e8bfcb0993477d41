"""Bytes and files: safetensors headers, checkpoint folders, streaming copies, atomic output.

Nothing here knows what a tensor means. The modules read only with the standard library, never open a
source for writing and never unpickle anything. Import the modules themselves:
``dtypes``, ``header``, ``folder``, ``writer`` and ``output``.
"""
