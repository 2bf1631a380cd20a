"""Is a proposal one that the target can verify? Drafters are not trusted."""

from forerun.speculation.tree import TokenTree


def find_fault(tree: TokenTree, *, root: int, max_nodes: int, vocab_size: int) -> str | None:
    """What is wrong with a proposal, or None.

    Args:
        root: the last committed token, which node 0 has to be.
        max_nodes: the width that was agreed on, root included.
        vocab_size: ids must lie in [0, vocab_size).
    """
    num_nodes = len(tree.token_ids)
    if not 1 <= num_nodes <= max_nodes or not num_nodes == len(tree.parents) == len(tree.depths):
        return f"{num_nodes} nodes where 1 to {max_nodes} were agreed on"
    if tree.token_ids[0] != root or tree.depths[0] != 0:
        return f"its root is token {tree.token_ids[0]}, the last committed token is {root}"
    for node in range(1, num_nodes):
        parent = tree.parents[node]
        if not 0 <= parent < node or tree.depths[node] != tree.depths[parent] + 1:
            return f"node {node} names {parent} as its parent"
        if not 0 <= tree.token_ids[node] < vocab_size:
            return f"node {node} holds token {tree.token_ids[node]}, the target knows ids below {vocab_size}"
    return None
