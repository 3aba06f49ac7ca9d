"""Open-loop load, raw samples, percentiles, verdicts. Must not know the inside of the engine."""

import os

# Locust patches the standard library when it is imported, unless this says no: connections are on threads of their own.
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
