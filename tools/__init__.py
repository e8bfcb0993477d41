"""Tools of the developers: what is generated, and the tour of the README. Not part of the package."""
