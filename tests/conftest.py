"""Random cases are the same in every run, and no case is too slow for the clock of a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")
