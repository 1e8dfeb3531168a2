"""What a device may become in a guest that moves: what hosts declare, the deployment's rules, and the answers."""
