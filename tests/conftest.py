"""What all tests share: how hypothesis searches, and how it says what it found."""

import os

from hypothesis import HealthCheck, settings

# No deadlines: a slow machine is no failing test. A failing example prints the blob that repeats it.
settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
