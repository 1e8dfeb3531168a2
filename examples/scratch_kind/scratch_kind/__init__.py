"""A device kind of another package: files of a directory as memory of guests."""
