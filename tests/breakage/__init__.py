"""The day things break; an assertion of the crew says what it compared."""

import pytest

pytest.register_assert_rewrite("tests.breakage.crew", "tests.races.helpers")
