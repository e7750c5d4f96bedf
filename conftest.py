"""
Loads the fixtures for tests/ and sql_tests/ alike (pytest allows `pytest_plugins` only at the root).
"""

pytest_plugins = ["tests.support.fixtures", "pytester"]
