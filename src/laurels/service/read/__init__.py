"""The read path: queries of rankings."""
