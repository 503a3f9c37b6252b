"""The gateway's pure part: what is asked of a provider, what its events become, what its failures mean."""
