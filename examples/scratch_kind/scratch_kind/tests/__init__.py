"""The tests of the kind."""
