"""Fixtures for tests of this project and of others: documented, and kept as stable as the rest of the library."""
