"""The lab next door: measures what `forerun` does, plans, packs and trains. `forerun` never imports it."""
