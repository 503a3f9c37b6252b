"""The wire of Procession: everything that crosses a process, as pydantic models and typed dicts."""
