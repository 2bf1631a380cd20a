// Attention of some rows with one chunk of their texts, and the merging of chunks.
//
// All sums run in the order of a row's logical positions. A slot's logical position is its index in the row's own text.
// Chunks, and the sixteen lanes within a chunk, are divided by logical position. So a row's result depends neither on
// where its slots are stored nor on the other rows, and decoding, tree verification and prefill give the same bits.
// Slots with the same logical position in all rows are read once for all rows. A row's own slots are scored together
// with those of the other rows, and the scores are then moved to the row's logical positions. Slots that a row does not
// attend to enter no sum, so unwritten slots may contain anything.
//
// Source of the chunks and their merging: flash decoding (Dao, Haziza, Massa, Sizov, 2023); softmax as in arXiv
// 1805.02867.
#pragma once
#include "attention_tiles.h"
#include "rounding.h"

namespace forerun {
namespace {

constexpr int MOST_OF_QUERY = 127 * 256 + 127;  // of 16 bits; both bytes of it are within 8 bits, see store_s16
constexpr int VALUES_AHEAD = 16;  // prefetch distance of values, in slots; keys are prefetched by a tile

template <typename E> struct AttendCall {
    Heads heads;
    int kv_head, group, t_begin, num_rows, num_queries;
    int first_position;  // of the chunk
    Visibility seen;
    const E *keys, *values;  // of slot 0 and this head
    int64_t slot_stride;     // elements
    Query<E>* queries;
    QueryRounding* roundings;
    int32_t *transposed, *slots;
    float *scales, *scores, *tree_tile, *partial;

    const Query<E>* query(int number) const { return queries + number * Word<E>::query_size(heads.head_dim); }
    // How sums of the queries from this one on with the transposed keys become scores.
    Scores<E> scores_from(int query) const {
        const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(heads.head_dim));
        if constexpr (sizeof(E) == 1)
            return {roundings + query, scales};
        else
            return scale;
    }

    float* part(int query) const {  // largest score, sum of weights, weighted sum of values
        const int64_t row = t_begin + query / group;
        return partial + (row * heads.num_heads + kv_head * group + query % group) * (2 + heads.head_dim);
    }
    const uint8_t* ancestry(int row) const {
        return seen.ancestry + static_cast<int64_t>(t_begin + row) * seen.num_tree;
    }
};

inline int least(int a, int b) { return a < b ? a : b; }
inline int within_chunk(int position) { return position < 0 ? 0 : least(position, ATTENTION_CHUNK); }

// Bit i is set where marks[i] is 1, for n <= 64 marks.
inline uint64_t bits_of(const uint8_t* marks, int n) {
    uint8_t bytes[64] = {};
    __builtin_memcpy(bytes, marks, static_cast<unsigned>(n));
    uint64_t bits = 0;
    for (int i = 0; i < n; i += 8) {
        uint64_t eight;
        __builtin_memcpy(&eight, bytes + i, sizeof eight);
        bits |= (eight * 0x0102040810204080u >> 56) << i;
    }
    return bits;
}

// Of the slots that a row attends to from logical position `next` on, those inside the chunk.
inline uint64_t of_chunk(uint64_t bits, int next) {
    for (; next < 0 && bits; next++) bits &= bits - 1;
    for (int excess = next + __builtin_popcountll(bits) - ATTENTION_CHUNK; excess > 0 && bits; excess--)
        bits &= ~(uint64_t{1} << (63 - __builtin_clzll(bits)));
    return bits;
}

// Splits words of two bfloat16 into floats: word i becomes rows 2 i and 2 i + 1 of `to`. The words are in the second
// half of `to`.
inline void widen_tile(const int32_t* words, int num_words, int num_vectors, int32_t* to) {
    for (int i = 0; i < num_words; i++)
        for (int k = 0; k < num_vectors; k++) {
            const simd::I both = simd::load_int(words + i * TILE_SLOTS + k * PANEL);
            simd::store_int(to + 2 * i * TILE_SLOTS + k * PANEL, simd::shift_left<16>(both));
            simd::store_int(to + (2 * i + 1) * TILE_SLOTS + k * PANEL,
                            simd::and_int(both, simd::set1_int(static_cast<int32_t>(0xffff0000))));
        }
}

// The scale of a row in int8; also prefetches the one `ahead` bytes after it.
inline float scale_of(const int8_t* row, const Heads& heads, int64_t ahead) {
    float scale;
    __builtin_memcpy(&scale, row + heads.head_dim, sizeof scale);
    simd::prefetch(row + heads.head_dim + ahead);
    return scale;
}

// Transposes the keys of n <= TILE_SLOTS slots: word i of slot s goes to transposed[i * TILE_SLOTS + s], or its two
// halves go as floats to rows 2 i and 2 i + 1.
template <typename E> void transpose_tile(const AttendCall<E>& call, int slot, int n) {
    constexpr bool WIDENS = sizeof(E) == 2 && !simd::HAS_BF16_DOT;
    const int num_words = (call.heads.head_dim * static_cast<int>(sizeof(E)) + 3) / 4;
    const int64_t row_bytes = call.slot_stride * static_cast<int64_t>(sizeof(E));
    int32_t* words = call.transposed + (WIDENS ? num_words * TILE_SLOTS : 0);
    for (int s = 0; s < n; s += 16) {
        const char* from = reinterpret_cast<const char*>(call.keys + (slot + s) * call.slot_stride);
        for (int w = 0; w < num_words; w += 16) {
            for (int row = 0; row < 16; row++) simd::prefetch(from + (TILE_SLOTS + row) * row_bytes + 4 * w);
            simd::transpose(from + 4 * w, row_bytes, least(16, n - s), least(16, num_words - w),
                            words + w * TILE_SLOTS + s, TILE_SLOTS);
        }
    }
    if (WIDENS) widen_tile(words, num_words, (n + PANEL - 1) / PANEL, call.transposed);
    if constexpr (sizeof(E) == 1)
        for (int s = 0; s < n; s++)
            call.scales[s] = scale_of(call.keys + (slot + s) * row_bytes, call.heads, TILE_SLOTS * row_bytes);
}

// Rounds a query to 16 bits. Its products with codes, plus 128 each unless SIGNED_CODES, are summed without overflow.
inline void round_query(const AttendCall<int8_t>& call, int query, const float* from) {
    const int size = call.heads.head_dim;
    const int most = least(MOST_OF_QUERY, 0xffffff / size);
    const auto part = [&](int i) { return i + 16 <= size ? simd::load(from + i) : simd::load_n(from + i, size - i); };
    Largest largest;
    for (int i = 0; i < size; i += 16) largest.add(part(i));
    const Rounding rounding = largest.rounding(most);
    int16_t* to = call.queries + query * Word<int8_t>::query_size(size);
    simd::I total = simd::set1_int(0);
    for (int i = 0; i < size; i += 16) {
        const simd::I codes = rounding.codes(part(i));
        simd::store_s16(reinterpret_cast<char*>(to + i), codes);
        total = simd::add_int(total, codes);
    }
    int32_t lanes[16], excess = 0;
    simd::store_int(lanes, total);
    for (int lane : lanes) excess += simd::SIGNED_CODES ? 0 : 128 * lane;
    call.roundings[query] = {rounding.scale / __builtin_sqrtf(static_cast<float>(size)), excess};
}

// Converts the queries to the input format of the products. Elements after a row's last one are overwritten or unused.
template <typename E> void round_queries(const AttendCall<E>& call, const float* q) {
    const int size = call.group * call.heads.head_dim, row_size = call.heads.num_heads * call.heads.head_dim;
    for (int row = 0; row < call.num_rows; row++) {
        const float* from = q + static_cast<int64_t>(call.t_begin + row) * row_size + call.kv_head * size;
        Query<E>* to = call.queries + row * size;
        int i = 0;
        for (; i + 16 <= size; i += 16) Word<E>::store_inputs(to + i, simd::load(from + i));
        if (i < size) Word<E>::store_inputs(to + i, simd::load_n(from + i, size - i));
    }
}

inline void round_queries(const AttendCall<int8_t>& call, const float* q) {
    for (int query = 0; query < call.num_queries; query++) {
        const int64_t row = call.t_begin + query / call.group, head = call.kv_head * call.group + query % call.group;
        round_query(call, query, q + (row * call.heads.num_heads + head) * call.heads.head_dim);
    }
}

// Computes scores of the chunk's first n slots, whose logical positions are the same for all rows.
template <typename E> void score_common(const AttendCall<E>& call, int n) {
    const int head_dim = call.heads.head_dim;
    for (int s = 0; s < n; s += TILE_SLOTS) {
        const int num_slots = least(TILE_SLOTS, n - s);
        transpose_tile(call, call.first_position + s, num_slots);
        for (int query = 0; query < call.num_queries; query += simd::BLOCK_QUERIES)
            score_tile<E>(least(simd::BLOCK_QUERIES, call.num_queries - query), call.query(query), head_dim,
                          call.transposed, (num_slots + 15) / 16, call.scores_from(query),
                          call.scores + query * SCORE_STRIDE + s, SCORE_STRIDE);
    }
}

// Moves one query's scores from slot order to logical positions.
inline void place_scores(const float* by_slot, uint64_t bits, float* by_position) {
    for (; bits; bits >>= 16, by_slot += 16) {
        const auto sixteen = static_cast<uint32_t>(bits & 0xffffu);
        simd::store(by_position, simd::compress(simd::load(by_slot), sixteen));
        by_position += __builtin_popcount(sixteen);
    }
}

// Computes scores of the tree's slots. On entry lengths[row] is the number of logical positions between the chunk's
// start and the tree, which may be negative; on return it also includes the row's slots in the tree.
template <typename E> void score_tree(const AttendCall<E>& call, int* lengths) {
    const int head_dim = call.heads.head_dim;
    for (int slot = 0; slot < call.seen.num_tree; slot += TILE_SLOTS) {
        uint64_t bits[ATTENTION_ROWS], any = 0;
        int places[ATTENTION_ROWS];
        for (int row = 0; row < call.num_rows; row++) {
            const uint64_t all = bits_of(call.ancestry(row) + slot, least(TILE_SLOTS, call.seen.num_tree - slot));
            bits[row] = of_chunk(all, lengths[row]);
            any |= bits[row];
            places[row] = within_chunk(lengths[row]);
            lengths[row] += __builtin_popcountll(all);
        }
        if (!any) continue;
        const int num_slots = 64 - __builtin_clzll(any);
        transpose_tile(call, call.seen.prefix_len + slot, num_slots);
        for (int query = 0; query < call.num_queries; query += simd::BLOCK_QUERIES) {
            const int num_queries = least(simd::BLOCK_QUERIES, call.num_queries - query);
            uint64_t wanted = 0;
            for (int i = 0; i < num_queries; i++) wanted |= bits[(query + i) / call.group];
            if (!wanted) continue;
            score_tile<E>(num_queries, call.query(query), head_dim, call.transposed, (num_slots + 15) / 16,
                          call.scores_from(query), call.tree_tile, TILE_SLOTS);
            for (int i = 0; i < num_queries; i++) {
                const int row = (query + i) / call.group;
                place_scores(call.tree_tile + i * TILE_SLOTS, bits[row],
                             call.scores + (query + i) * SCORE_STRIDE + places[row]);
            }
        }
    }
}

// Turns scores into weights exp(score - largest) in place; writes the largest score, the sum and zeros to `part`.
// The first `hidden` scores, which the row's window hides, get weight 0.
inline void soften(float* scores, int n, int hidden, int head_dim, float* part) {
    __builtin_memset(part + 2, 0, sizeof(float) * static_cast<unsigned>(head_dim));
    if (hidden >= n) {
        part[0] = -__builtin_inff();
        part[1] = 0.0f;
        if (n > 0) __builtin_memset(scores, 0, sizeof(float) * static_cast<unsigned>(n));
        return;
    }
    for (int i = 0; i < hidden; i++) scores[i] = -__builtin_inff();
    simd::store(scores + n, simd::set1(-__builtin_inff()));  // pads the last vector with weights of 0
    simd::F top = simd::set1(-__builtin_inff()), sum = simd::zero();
    for (int i = 0; i < n; i += 16) top = simd::max(simd::load(scores + i), top);
    part[0] = simd::max_of(top);
    part[1] = 0.0f;
    if (part[0] == -__builtin_inff()) {  // no slot of the chunk holds a row
        __builtin_memset(scores, 0, sizeof(float) * static_cast<unsigned>(n));
        return;
    }
    for (int i = 0; i < n; i += 16) {
        const simd::F weights = simd::exp(simd::sub(simd::load(scores + i), simd::set1(part[0])));
        simd::store(scores + i, weights);
        sum = simd::add(sum, weights);
    }
    part[1] = simd::sum(sum);
}

// Scores of the chunk's first n slots that hold no row become -infinity, for all queries.
template <typename E> void hide_unknown(const AttendCall<E>& call, int n) {
    for (int s = 0; s < n; s++) {
        if (call.seen.known[call.first_position + s]) continue;
        for (int query = 0; query < call.num_queries; query++)
            call.scores[query * SCORE_STRIDE + s] = -__builtin_inff();
    }
}

// Of a row's logical positions, those of this chunk that its window hides, counted from the chunk's start.
template <typename E> int hidden_by_window(const AttendCall<E>& call, int row) {
    if (!call.seen.window) return 0;
    int length = call.seen.first_slot + call.t_begin + row + 1;
    if (call.seen.ancestry) {
        length = call.seen.prefix_len;
        for (int slot = 0; slot < call.seen.num_tree; slot += TILE_SLOTS)
            length += __builtin_popcountll(
                bits_of(call.ancestry(row) + slot, least(TILE_SLOTS, call.seen.num_tree - slot)));
    }
    return within_chunk(length - call.seen.window - call.first_position);
}

// Multiplies the weights of values in int8, which begin at logical position `first` of the chunk, by their scales.
inline void scale_weights(const AttendCall<int8_t>& call, int query_begin, int query_end, const Values<int8_t>& values,
                          int first) {
    for (int i = 0; i < values.count; i += 16) {
        const int n = least(16, values.count - i);
        float scales[16];
        for (int j = 0; j < n; j++) scales[j] = scale_of(values.at(i + j), call.heads, values.ahead);
        for (int query = query_begin; query < query_end; query++) {
            float* weights = call.scores + query * SCORE_STRIDE + first + i;
            simd::store_n(weights, simd::mul(simd::load_n(weights, n), simd::load_n(scales, n)), n);
        }
    }
}

// Adds `values` to the weighted sums of num_queries queries, whose weights for them begin at logical position `first`
// of the chunk.
template <typename E> void mix(const AttendCall<E>& call, int query_begin, int query_end, Values<E> values, int first) {
    const int head_dim = call.heads.head_dim;
    if constexpr (sizeof(E) == 1) scale_weights(call, query_begin, query_end, values, first);
    for (int d = 0, next = 0; d < head_dim; d = next) {
        Values<E> once = values;
        for (int query = query_begin; query < query_end; query += simd::BLOCK_QUERIES) {
            const int num_queries = least(simd::BLOCK_QUERIES, query_end - query);
            float* mixed[simd::BLOCK_QUERIES];
            for (int i = 0; i < num_queries; i++) mixed[i] = call.part(query + i) + 2;
            next = mix_some(once, num_queries, call.scores + query * SCORE_STRIDE + first, mixed, d, head_dim);
            once.ahead = 0;  // for the next queries the values are in the cache
        }
    }
}

// Adds the values of the chunk's first n slots, which all rows attend to, a tile at a time.
template <typename E> void mix_common(const AttendCall<E>& call, int n) {
    for (int s = 0; s < n; s += TILE_SLOTS) {
        const int begin = call.first_position + s, count = least(TILE_SLOTS, n - s);
        const Values<E> tile{call.values, call.slot_stride, nullptr, begin, count, VALUES_AHEAD * call.slot_stride};
        mix(call, 0, call.num_queries, tile, s);
    }
}

// Adds the values of the tree's slots that one row attends to.
template <typename E> void mix_tree(const AttendCall<E>& call, int row) {
    int next = call.seen.prefix_len - call.first_position, count = 0;
    const int first = within_chunk(next);
    for (int slot = 0; slot < call.seen.num_tree; slot += TILE_SLOTS) {
        const uint64_t all = bits_of(call.ancestry(row) + slot, least(TILE_SLOTS, call.seen.num_tree - slot));
        for (uint64_t bits = of_chunk(all, next); bits; bits &= bits - 1)
            call.slots[count++] = call.seen.prefix_len + slot + __builtin_ctzll(bits);
        next += __builtin_popcountll(all);
    }
    mix(call, row * call.group, (row + 1) * call.group,
        Values<E>{call.values, call.slot_stride, call.slots, 0, count, 0}, first);
}

template <typename E> void attend_chunk(const AttendCall<E>& call) {
    const bool is_tree = call.seen.ancestry != nullptr;
    const int text = (is_tree ? call.seen.prefix_len : call.seen.first_slot + call.t_begin + 1) - call.first_position;
    const int num_common = within_chunk(text);  // slots that all rows attend to
    int lengths[ATTENTION_ROWS];
    for (int row = 0; row < call.num_rows; row++) lengths[row] = is_tree ? text : text + row;
    score_common(call, is_tree ? num_common : within_chunk(text + call.num_rows - 1));
    if (call.seen.known) hide_unknown(call, num_common);
    if (is_tree && num_common < ATTENTION_CHUNK) score_tree(call, lengths);
    int hidden[ATTENTION_ROWS];
    for (int row = 0; row < call.num_rows; row++) hidden[row] = hidden_by_window(call, row);
    for (int query = 0; query < call.num_queries; query++)
        soften(call.scores + query * SCORE_STRIDE, within_chunk(lengths[query / call.group]),
               hidden[query / call.group], call.heads.head_dim, call.part(query));
    mix_common(call, num_common);
    for (int row = 0; row < call.num_rows; row++) {
        const int own = within_chunk(lengths[row]) - num_common;
        if (own <= 0) continue;
        if (is_tree)
            mix_tree(call, row);
        else
            mix(call, row * call.group, (row + 1) * call.group,
                Values<E>{call.values, call.slot_stride, nullptr, call.first_position + num_common, own, 0},
                num_common);
    }
}

template <typename E>
void attend_as(const float* q, Heads heads, LayerCache cache, int kv_head, int t_begin, int t_end, int chunk,
               Visibility seen, float* partial, char* scratch) {
    const AttentionScratch places = attention_scratch(heads);
    const int group = heads.num_heads / heads.num_kv_heads, num_rows = t_end - t_begin;
    const int64_t head = static_cast<int64_t>(kv_head) * row_size(cache.format, heads.head_dim);
    AttendCall<E> call{};
    call.heads = heads;
    call.kv_head = kv_head;
    call.group = group;
    call.t_begin = t_begin;
    call.num_rows = num_rows;
    call.num_queries = num_rows * group;
    call.first_position = chunk * ATTENTION_CHUNK;
    call.seen = seen;
    call.keys = static_cast<const E*>(cache.keys) + head;
    call.values = static_cast<const E*>(cache.values) + head;
    call.slot_stride = cache.slot_stride;
    call.queries = reinterpret_cast<Query<E>*>(scratch + places.queries);
    call.roundings = reinterpret_cast<QueryRounding*>(scratch + places.roundings);
    call.scales = reinterpret_cast<float*>(scratch + places.scales);
    call.transposed = reinterpret_cast<int32_t*>(scratch + places.keys);
    call.slots = reinterpret_cast<int32_t*>(scratch + places.slots);
    call.scores = reinterpret_cast<float*>(scratch + places.scores);
    call.tree_tile = reinterpret_cast<float*>(scratch + places.tree_tile);
    call.partial = partial;
    round_queries(call, q);
    attend_chunk(call);
}

inline void attend(const float* q, Heads heads, LayerCache cache, int kv_head, int t_begin, int t_end, int chunk,
                   Visibility seen, float* partial, void* scratch) {
    char* bytes = static_cast<char*>(scratch);
    if (cache.format == CacheFormat::int8)
        attend_as<int8_t>(q, heads, cache, kv_head, t_begin, t_end, chunk, seen, partial, bytes);
    else if (cache.format == CacheFormat::bf16)
        attend_as<uint16_t>(q, heads, cache, kv_head, t_begin, t_end, chunk, seen, partial, bytes);
    else
        attend_as<float>(q, heads, cache, kv_head, t_begin, t_end, chunk, seen, partial, bytes);
}

inline float exp_one(float x) {
    float lanes[16];
    simd::store(lanes, simd::exp(simd::set1(x)));
    return lanes[0];
}

// Merges one head's chunks into `mixed`, D floats; `sink` is null or the score of the head's sink.
inline void join_head(const float* parts, int64_t chunk_stride, int num_chunks, int head_dim, const float* sink,
                      float* mixed) {
    float largest = sink ? *sink : -__builtin_inff(), total = 0.0f;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        const float* part = parts + chunk * chunk_stride;
        if (!(part[0] <= largest)) largest = part[0];
    }
    __builtin_memset(mixed, 0, sizeof(float) * static_cast<unsigned>(head_dim));
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        const float* part = parts + chunk * chunk_stride;
        const float weight = exp_one(part[0] - largest);  // 0 where the row does not reach the chunk
        total += weight * part[1];
        for (int d = 0; d < head_dim; d++) mixed[d] += weight * part[2 + d];
    }
    if (sink) total += exp_one(*sink - largest);
    const float share = 1.0f / total;
    for (int d = 0; d < head_dim; d++) mixed[d] *= share;
}

inline void join(const float* partial, int64_t chunk_stride, int num_chunks, Heads heads, int t_begin, int t_end,
                 int head_begin, int head_end, const float* sinks, float* mixed) {
    for (int t = t_begin; t < t_end; t++)
        for (int head = head_begin; head < head_end; head++) {
            const int64_t place = static_cast<int64_t>(t) * heads.num_heads + head;
            join_head(partial + place * (2 + heads.head_dim), chunk_stride, num_chunks, heads.head_dim,
                      sinks ? sinks + head : nullptr, mixed + place * heads.head_dim);
        }
}

}  // namespace
}  // namespace forerun
