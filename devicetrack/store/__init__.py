"""Durable rows: which instance owns which device."""
