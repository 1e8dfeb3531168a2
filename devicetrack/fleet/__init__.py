"""The mirror: one central database with a copy of what every host of a fleet knows. Nothing decides by it."""
