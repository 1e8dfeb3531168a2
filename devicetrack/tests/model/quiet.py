"""Keeps the log of thousands of starts and audits from being written."""

import logging

import testtools


def logs(test: testtools.TestCase) -> None:
    """Write no log until the test ends."""
    logging.disable(logging.CRITICAL)
    test.addCleanup(logging.disable, logging.NOTSET)
