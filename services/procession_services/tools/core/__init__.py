"""Decides what becomes of each tool call; pure."""
