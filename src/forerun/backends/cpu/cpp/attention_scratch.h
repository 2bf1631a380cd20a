// What one call of attend keeps in its scratch, in bytes from its start, all multiples of 64.
#pragma once
#include "kernels.h"

namespace forerun {
namespace {

constexpr int TILE_SLOTS = 64;                        // slots whose keys are transposed together
constexpr int SCORE_STRIDE = ATTENTION_CHUNK + PANEL;  // a vector may be written at the last logical position

constexpr int MOST_QUERIES = 8;                       // that any instruction set takes at a time

struct AttentionScratch {
    int64_t queries;     // [rows * group][D] in the cache's type
    int64_t keys;        // [words of a key][TILE_SLOTS], a word is a float, or two bfloat16 where those are multiplied as they are
    int64_t scores;      // [rows * group][SCORE_STRIDE], by logical position less that of the chunk
    int64_t tree_tile;   // [MOST_QUERIES][TILE_SLOTS] scores by slot
    int64_t slots;       // [ATTENTION_CHUNK] int32: what one row sees of the tree
    int64_t num_bytes;
};

inline AttentionScratch attention_scratch(const Heads& heads) {
    const int64_t num_queries = static_cast<int64_t>(ATTENTION_ROWS) * (heads.num_heads / heads.num_kv_heads);
    AttentionScratch s{};
    s.keys = s.queries + (num_queries * heads.head_dim * 4 + 63) / 64 * 64;
    s.scores = s.keys + static_cast<int64_t>(heads.head_dim) * TILE_SLOTS * 4;
    s.tree_tile = s.scores + num_queries * SCORE_STRIDE * 4;
    s.slots = s.tree_tile + MOST_QUERIES * TILE_SLOTS * 4;
    s.num_bytes = s.slots + ATTENTION_CHUNK * 4;
    return s;
}

}  // namespace
}  // namespace forerun
