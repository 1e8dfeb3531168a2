"""The hypervisor and the host behind one interface."""
