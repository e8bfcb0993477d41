"""What a codec says when a field does not hold what it spells."""

from __future__ import annotations


class CodecFault(Exception):
    """A config value that cannot be read, or a fact that cannot be written here."""

    def __init__(self, message: str, *, code: str = "bad-config-value", next: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.next = next
