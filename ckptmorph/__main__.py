"""``python -m ckptmorph``."""

from ckptmorph.cli import entry

if __name__ == "__main__":
    entry()
