"""Programs that run inside the compute hosts of the cloud."""
