"""The suite that every virt driver passes.

:mod:`devicetrack.tests.drivers.contract` has the tests, as a mixin; a driver's own module adds a ``World``.
"""
