"""Durable rows: who owns which device."""
