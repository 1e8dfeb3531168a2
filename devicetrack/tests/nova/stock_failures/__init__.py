"""What stock Nova does wrong with devices, each as a test that fails on it and passes with the adapter.

They stand on the base classes of Nova's own functional tests, with real API, scheduler, conductor and computes in one
process. ``python -m devicetrack.tests.nova`` runs each on both.
"""
