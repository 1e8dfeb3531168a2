"""The contract of a device kind, as tests that the package of the kind runs.

See :mod:`devicetrack.testing.kinds.contract` and :mod:`devicetrack.testing.kinds.world`.
"""
