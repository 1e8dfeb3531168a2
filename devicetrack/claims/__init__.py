"""The claim manager: the only place where lock, ledger, store and driver meet."""
