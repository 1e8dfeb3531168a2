"""Nova's own test suites with our adapter in its services, and what its stock release does wrong.

``python -m devicetrack.tests.nova`` runs them, in an environment that has a release of Nova: see
doc/source/contributor/testing.rst. Nothing of Nova is copied here.
"""
