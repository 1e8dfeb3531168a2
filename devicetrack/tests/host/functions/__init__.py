"""Tests that run on a host with PCI functions to give away."""
