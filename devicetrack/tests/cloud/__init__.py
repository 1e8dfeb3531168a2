"""Nova with real services on this machine and two compute hosts, which are virtual machines: ``make cloud-test``."""
