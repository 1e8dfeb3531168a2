"""The wiring of a compute service: instances with devices, from their boot to their delete, over crashes and moves.

It stands above :class:`~devicetrack.claims.manager.ClaimManager`, and makes only calls that any other service could
make. :class:`~devicetrack.service.lifecycle.Lifecycle` has the operations, and
:mod:`devicetrack.service.protocols` says what the service gives it.
"""
