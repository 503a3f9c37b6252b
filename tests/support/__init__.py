"""Plain modules that tests share; `conftest.py` is never imported."""
