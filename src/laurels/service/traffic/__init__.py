"""Which calls are admitted: rate limits of callers, and load shedding."""

from laurels.service.traffic.gate import Gate, Traffic, Work
from laurels.service.traffic.rates import Rate, Rates

__all__ = ["Gate", "Rate", "Rates", "Traffic", "Work"]
