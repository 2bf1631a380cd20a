// Layout of the scratch memory of one call of attend: offsets in bytes, all multiples of 64.
#pragma once
#include "kernels.h"

namespace forerun {
namespace {

constexpr int TILE_SLOTS = 64;                        // slots whose keys are transposed together
constexpr int SCORE_STRIDE = ATTENTION_CHUNK + PANEL;  // a vector may be written at the last logical position

constexpr int MOST_QUERIES = 8;                       // upper bound of BLOCK_QUERIES in all instruction sets

// Of a query in 16 bits: a score is (sum of products - excess) * scale * the scale of the key.
struct QueryRounding {
    float scale;
    int32_t excess;
};

struct AttentionScratch {
    int64_t queries;     // [rows * group][D] in the cache's type; for int8 with 16 bits and padded to whole vectors
    int64_t roundings;   // [rows * group] QueryRounding, for int8
    int64_t keys;        // [words of a key][TILE_SLOTS]; a word: a float, or two bfloat16 if HAS_BF16_DOT, or four codes
    int64_t scales;      // [TILE_SLOTS] of these keys, for int8
    int64_t scores;      // [rows * group][SCORE_STRIDE], by logical position less that of the chunk
    int64_t tree_tile;   // [MOST_QUERIES][TILE_SLOTS] scores by slot
    int64_t slots;       // [ATTENTION_CHUNK] int32: the tree's slots that one row attends to
    int64_t num_bytes;
};

inline AttentionScratch attention_scratch(const Heads& heads) {
    const int64_t num_queries = static_cast<int64_t>(ATTENTION_ROWS) * (heads.num_heads / heads.num_kv_heads);
    AttentionScratch s{};
    s.roundings = s.queries + num_queries * ((heads.head_dim + 15) / 16 * 64);
    s.keys = s.roundings + (num_queries * static_cast<int64_t>(sizeof(QueryRounding)) + 63) / 64 * 64;
    s.scales = s.keys + static_cast<int64_t>(heads.head_dim) * TILE_SLOTS * 4;
    s.scores = s.scales + TILE_SLOTS * 4;
    s.tree_tile = s.scores + num_queries * SCORE_STRIDE * 4;
    s.slots = s.tree_tile + MOST_QUERIES * TILE_SLOTS * 4;
    s.num_bytes = s.slots + ATTENTION_CHUNK * 4;
    return s;
}

}  // namespace
}  // namespace forerun
