"""Error recovery: processAPIError."""
