"""Checks of architectural rules: functions that take the root of a clone and return one line per finding."""
