"""Self-speculation: the target drafts with some of its sublayers skipped.

A row is one guess compared with the text. 32 rows are one evaluation, the size of SWIFT's window.

Origin of the constants: numbers of rows, shares and deviations were chosen on emulators fitted to the random candidates
of two published SWIFT runs (skip_emulator.py among the tests). Seconds, shares of a pass and numbers of rounds were
chosen on the built-in target and a random model of 125M, on two Zen 5 cores (docs/log.md, 2026-11-22).
"""
