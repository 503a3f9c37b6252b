"""The memory service: what conversations leave behind, and what later runs get back."""
