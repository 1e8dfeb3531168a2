"""Decides which device may replace another in a guest that moves, from hosts' declarations and a deployment's rules."""
