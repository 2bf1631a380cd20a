"""The numbers of attention heads, as the configs of models and of draft heads state them."""

from forerun.core.json_file import REQUIRED, JsonFile


def read_head_counts(keys: JsonFile, heads: str, kv_heads: str, *, is_required: bool = False) -> tuple[int, int]:
    """The numbers of query heads and of key/value heads, which are equal if the config does not give the second one.

    Args:
        heads, kv_heads: the config's names for them.
        is_required: the second one must be stated.

    Raises:
        CheckpointError: a number is missing or out of range, or query heads cannot share the others evenly.
    """
    num_heads = keys.integer(heads)
    num_kv_heads = keys.integer(kv_heads, REQUIRED if is_required else num_heads)
    if num_heads % num_kv_heads:
        raise keys.wrong(kv_heads, f"a divisor of {heads} ({num_heads})")
    return num_heads, num_kv_heads
