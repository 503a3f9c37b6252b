"""The pure parts of the built-in processors."""
