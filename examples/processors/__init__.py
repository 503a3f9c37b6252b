"""The processors of the contract's documentation, in Python; `examples.plugin` installs them."""
