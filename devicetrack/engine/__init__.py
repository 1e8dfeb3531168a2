"""Pure decisions: no I/O, no lock, no clock. Everything they need is handed in."""
