"""Pure values and rules: no input or output, no clock, no randomness but where a name says so."""
