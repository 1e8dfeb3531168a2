"""What the library costs, as ratios that are measured side by side in one run: ``make bench``."""
