"""Pure values and rules: no I/O, no clock, and no randomness except in `ids`."""
