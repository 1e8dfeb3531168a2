"""What the scheduler's placement service is told: inventories of this host's devices, allocations of its consumers.

Nothing here is called under the ledger's lock, and the claim manager does not know that it exists: a device is
exclusive by the store's unique constraint, never by placement's counts.
"""
