"""The built-in processors, registered by entry point like anybody else's."""
