"""The experiments of published papers as data, for forerun bench paper: each is a run of the bench, a projection of the
planner, or a record of a search, with the paper's own figures beside it.
"""
