"""Pages, looked at in a browser."""
