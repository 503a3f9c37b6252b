"""What a deployment needs: credentials, permissions, and the files that servers and containers read."""
