"""Estimates the costs and gains of drafting, and chooses by them. Callers pass in times; no clock is read."""
