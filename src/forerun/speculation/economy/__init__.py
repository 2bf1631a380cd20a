"""What drafting costs and brings, and the one choice that is made from it. No clock: times are passed in."""
