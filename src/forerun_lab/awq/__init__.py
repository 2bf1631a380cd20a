"""Makes a checkpoint packed in 4 bits from a plain one."""
