"""Where messages and threads are kept."""
