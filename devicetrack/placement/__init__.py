"""Reports a host's devices to the scheduler's placement service, and changes the allocations of its consumers.

This package is never called under the ledger's lock, and the claim manager does not know that it exists. The store's
unique constraint makes a device exclusive; placement's counts never do.
"""
