"""Loads the fixtures for tests/ and sql_tests/ alike (pytest allows `pytest_plugins` only at the root)."""

import importlib.util

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, and to make one, is the machine's affair.
settings.register_profile(
    "fairq", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("fairq")

# an assertion of these, which are no tests, says what it compared
pytest.register_assert_rewrite("tests.breakage.crew", "tests.races.helpers")

pytest_plugins = ["tests.support.fixtures", "pytester"]

# pytest-pgtap wants Python 3.11; the package itself, and its tests, run on 3.10 too.
if importlib.util.find_spec("pytest_pgtap"):
    pytest_plugins.append("tests.support.collection")
