"""What several tests of the programs share."""

import pytest
from treasury_kit import Treasury


@pytest.fixture
def treasury() -> Treasury:
    return Treasury.build()
