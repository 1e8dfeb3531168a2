"""The costs of the library, as ratios of measurements side by side in one run: ``make bench``."""
