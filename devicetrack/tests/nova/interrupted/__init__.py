"""What Nova's operations leave when they are interrupted or refused, with the adapter in its services."""
