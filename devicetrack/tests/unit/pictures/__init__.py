"""Pictures as values and as characters."""
