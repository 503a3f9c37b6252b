"""Processors and agents to learn from and to start with."""
