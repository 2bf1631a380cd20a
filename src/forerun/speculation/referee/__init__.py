"""Decides what each round drafts, by one record of costs and one of gains. Callers pass in times; no clock is read."""
