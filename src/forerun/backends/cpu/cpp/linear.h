// Products of prepared rows with panels of a packed weight.
//
// Panels are processed two at a time, gate with up. Their inputs are divided into blocks that stay in the L1 cache
// while all rows are multiplied with them, as many rows at a time as fit into the registers. Meanwhile the next block
// is prefetched, so that a pass takes only the time to read the weights.
//
// How a product of Q4_K, for example, reaches AVX2: the line q4_k of FORERUN_BLOCK_FORMATS in kernels.h makes
// Format::q4_k and gives its layout, which blocks.h reads and pack_blocks.cpp writes. From this layout the templates of
// tiles_blocks.cpp become loops over codes and scales, which tiles_of_q4_k returns and tiles_of below asks for by format.
// They are written with the functions of simd.h, which are those of simd_avx2.h where FORERUN_TIER_AVX2 is defined.
// CMakeLists.txt lists avx2 among `tiers` and calls add_part for each: tiles_blocks.cpp and tier.cpp, which puts `linear`
// into the table of kernels, are compiled with the tier's flags in the namespace of its name. At run time dispatch.cpp
// takes the table of the best tier that cpu.h says this machine can run, and all calls go through that table.
#pragma once
#include "dispatch.h"
#include "kernels.h"
#include "matrix_unit.h"
#include "pool.h"
#include "simd.h"
#include "tiles.h"

namespace forerun::FORERUN_TIER {
namespace {

constexpr int CHUNK_ROWS = 96;  // rows that are multiplied with one panel after another
constexpr int BLOCK_BYTES = 4096;  // of a panel that stay in the L1 cache, together with as many of the next block
constexpr int MANY_ROWS_BLOCK_BYTES = 8192;  // the same for many rows: fewer sums to load and store
constexpr int PART_BYTES = 512 * 1024;  // of the rows' inputs, which stay in the L2 cache meanwhile

inline const Tiles& tiles_of(const Linear& linear) {
#define FORERUN_CASE_OF(name, ...) \
    case Format::name: return tiles_of_##name(linear.input_bits);
    switch (static_cast<Format>(linear.format)) {
        FORERUN_BLOCK_FORMATS(FORERUN_CASE_OF)
        default: return plain_tiles(static_cast<Format>(linear.format));
    }
#undef FORERUN_CASE_OF
}

// Bits per prepared input.
inline int input_bits(const Linear& linear) {
    if (is_blocks(linear.format)) return are_bytes(layout_of(linear.format), linear.input_bits) ? 8 : 16;
    return 8 * tiles_of(linear).input_bytes;
}

// The unit takes sixteen rows at a time, in the time that the other instructions take for 12, or for 14 of bytes or of groups
// of 16.
inline bool is_for_unit(const Linear& linear, int num_rows) {
    const int num_tiles = (num_rows + UNIT_ROWS - 1) / UNIT_ROWS;
    return tiles_of(linear).run_by_unit && num_rows >= (input_bits(linear) == 8 || linear.group == 16 ? 14 : 12) * num_tiles;
}

inline int tile_bytes(const Linear& linear, int num_rows) {
    return is_for_unit(linear, num_rows) ? unit_group(linear).num_bytes() : 0;
}

// Values that are the same for all tiles.
struct Work {
    const Linear& linear;
    const Tiles& tiles;
    Rows x;
    int num_steps, block_steps, group_steps, row_groups;
    int64_t panel_bytes;
    bool streams, is_many;

    Work(const Linear& of, Rows rows, int num_rows) : linear(of), tiles(tiles_of(of)), x(rows) {
        streams = linear.streams && can_stream();
        is_many = tiles.run_many && num_rows >= simd::MANY_ROWS;
        num_steps = linear.padded_in / tiles.inputs;
        group_steps = tiles.by_groups ? linear.group / tiles.inputs : 1;
        row_groups = tiles.by_groups ? linear.padded_in / linear.group : 0;
        const int block_bytes = num_rows > tiles.max_rows ? MANY_ROWS_BLOCK_BYTES : BLOCK_BYTES;
        const int whole_groups = block_bytes / tiles.step_bytes / group_steps;
        const int num_groups = num_steps / group_steps, most = whole_groups ? whole_groups : 1;
        // Blocks of equal length, so that the whole next block is prefetched during the current one.
        const int num_blocks = (num_groups + most - 1) / most;
        block_steps = (num_groups + num_blocks - 1) / num_blocks * group_steps;
        panel_bytes = static_cast<int64_t>(num_steps) * tiles.step_bytes;
    }

    // Steps whose inputs of so many rows stay in the L2 cache: whole blocks.
    int part_steps(int num_rows) const {
        const int64_t bytes = static_cast<int64_t>(num_rows) * block_steps * tiles.inputs * (x.by_tiles ? 4 : 2);
        const int num_blocks = static_cast<int>(PART_BYTES / bytes);
        return num_blocks > 1 ? num_blocks * block_steps : block_steps;
    }

    const char* weights(int panel, int step) const {
        return static_cast<const char*>(linear.weights) + panel * panel_bytes +
               static_cast<int64_t>(step) * tiles.step_bytes;
    }

    // A last panel without a second one takes the place of the second too, whose sums nobody reads.
    Stretch stretch(int row, int panel, int num_panels, int step, float* sums) const {
        const bool is_single = num_panels < TILE_PANELS;
        const int64_t row_group = static_cast<int64_t>(row) * row_groups + step / group_steps;
        const int64_t panel_group = (static_cast<int64_t>(panel) * row_groups + step / group_steps) * PANEL;
        Stretch s{};
        s.weights = weights(panel, step);
        s.streams = streams;
        s.panel_bytes = is_single ? 0 : panel_bytes;
        const int64_t first_input = static_cast<int64_t>(step) * tiles.inputs;
        s.inputs = static_cast<const char*>(x.values) + (x.by_tiles ? row / UNIT_ROWS : row) * x.stride +
                   (is_blocks(linear.format) ? first_input / linear.group * x.group_stride
                                             : first_input * tiles.input_bytes);
        s.group_stride = x.group_stride;
        s.row_bytes = x.stride;
        s.num_steps = num_steps - step < block_steps ? num_steps - step : block_steps;
        s.sums = sums;
        s.sums_stride = SUMS_STRIDE;
        if (tiles.by_groups) {
            s.input_scales = x.scales + row_group;
            s.input_sums = x.sums + row_group;
            s.row_groups = row_groups;
            s.group_steps = group_steps;
        }
        if (linear.zeros) {
            s.scales = linear.scales + panel_group;
            s.zeros = linear.zeros + panel_group;
            s.panel_groups = is_single ? 0 : row_groups;
        }
        return s;
    }
};

// Adds the products of `num_rows` rows with one block of one or two panels to sums; `ahead` is the next block.
void multiply_block(const Work& work, int row, int num_rows, int panel, int num_panels, int step, const char* ahead,
                    float* sums) {
    if (work.is_many || work.x.by_tiles) {
        const auto run = work.x.by_tiles ? work.tiles.run_by_unit : work.tiles.run_many;
        for (int p = 0; p < num_panels; p += TILE_PANELS) {
            Stretch s = work.stretch(row, panel + p, num_panels - p, step, sums + p * PANEL);
            s.ahead = ahead + p * work.panel_bytes;
            s.ahead_step = LINE_BYTES;
            run(s, num_rows);
        }
        return;
    }
    const int num_passes = (num_rows + work.tiles.max_rows - 1) / work.tiles.max_rows;
    for (int pass = 0, done = 0; pass < num_passes; pass++) {
        const int rows = (num_rows - done + num_passes - pass - 1) / (num_passes - pass);
        for (int p = 0; p < num_panels; p += TILE_PANELS) {
            Stretch s = work.stretch(row + done, panel + p, num_panels - p, step, sums + done * SUMS_STRIDE + p * PANEL);
            s.ahead_step = (LINE_BYTES + num_passes - 1) / num_passes;
            const int64_t num_bytes = static_cast<int64_t>(s.num_steps) * work.tiles.step_bytes;
            s.ahead = ahead + p * work.panel_bytes + num_bytes / num_passes * pass;
            work.tiles.run[rows - 1](s);
        }
        done += rows;
    }
}

// The first output of a panel, and their number.
struct Columns {
    int begin, count;
};

Columns columns_of(const Linear& linear, int panel) {
    const int size = linear.paired ? linear.paired : linear.num_out;
    const int begin = (linear.paired ? panel / 2 : panel) * PANEL;
    const int left = size - begin;
    return {begin + (linear.paired && panel % 2 ? size : 0), left < PANEL ? left : PANEL};
}

simd::F load_some(const float* p, int n) { return n == PANEL ? simd::load(p) : simd::load_n(p, n); }
void store_some(float* p, simd::F a, int n) { n == PANEL ? simd::store(p, a) : simd::store_n(p, a, n); }

// The finished products of one row with one panel.
simd::F product(const Linear& linear, const float* sums, int panel, Columns columns) {
    const Format format = static_cast<Format>(linear.format);
    simd::F y = simd::load(sums);
    if (format == Format::int8 || format == Format::int8_wide)
        y = simd::mul(y, simd::load(linear.scales + static_cast<int64_t>(panel) * PANEL));
    if (linear.bias) y = simd::add(y, load_some(linear.bias + columns.begin, columns.count));
    return y;
}

// gate sigmoid(1.702 gate) (up + 1), with the gate at most 7 and up within [-7, 7].
simd::F clamped(simd::F gate, simd::F up) {
    const simd::F most = simd::set1(7.0f);
    gate = simd::min(most, gate);
    up = simd::max(simd::set1(-7.0f), simd::min(most, up));
    const simd::F below = simd::add(simd::set1(1.0f), simd::exp(simd::mul(gate, simd::set1(-1.702f))));
    return simd::mul(simd::div(gate, below), simd::add(up, simd::set1(1.0f)));
}

simd::F gate_and_up(Epilogue epilogue, simd::F gate, simd::F up) {
    if (epilogue == Epilogue::clamped_mul) return clamped(gate, up);
    return simd::mul(epilogue == Epilogue::silu_mul ? simd::silu(gate) : simd::gelu(gate), up);
}

// Converts one row's sums with one or two panels to outputs.
void finish(const Linear& linear, const float* sums, int row, int panel, int num_panels, const Output& out) {
    float* y = out.y + row * out.y_stride;
    const Columns first = columns_of(linear, panel);
    if (is_gate(out.epilogue)) {
        const simd::F gate = product(linear, sums, panel, first);
        const simd::F up = product(linear, sums + PANEL, panel + 1, columns_of(linear, panel + 1));
        store_some(y + first.begin, gate_and_up(out.epilogue, gate, up), first.count);
        return;
    }
    for (int p = 0; p < num_panels; p++) {
        const Columns columns = columns_of(linear, panel + p);
        simd::F value = product(linear, sums + p * PANEL, panel + p, columns);
        if (out.epilogue == Epilogue::add)
            value = simd::add(
                load_some(out.residual + row * out.residual_stride + columns.begin, columns.count), value);
        if (out.epilogue == Epilogue::capped)
            value = simd::mul(simd::tanh(simd::div(value, simd::set1(out.cap))), simd::set1(out.cap));
        store_some(y + columns.begin, value, columns.count);
    }
}

// Multiplies rows [row, row + num_rows), at most CHUNK_ROWS, with some pairs of panels, at most PAIRS_TOGETHER; `next` is the
// panel after them. All pairs are multiplied with a part of the rows' inputs before the next part.
void multiply_panels(const Work& work, int row, int num_rows, Slice panels, int next, const Output& out) {
    alignas(64) float sums[PAIRS_TOGETHER][CHUNK_ROWS * SUMS_STRIDE];
    const int zeroed = work.x.by_tiles ? (num_rows + UNIT_ROWS - 1) / UNIT_ROWS * UNIT_ROWS : num_rows;
    const int num_pairs = (panels.end - panels.begin + PAIR - 1) / PAIR;
    for (int pair = 0; pair < num_pairs; pair++)
        for (int i = 0; i < zeroed * PAIR; i++) simd::store(sums[pair] + i * PANEL, simd::zero());
    const auto panels_of = [&](int pair) {
        const int begin = panels.begin + pair * PAIR;
        return Slice{begin, begin + PAIR < panels.end ? begin + PAIR : panels.end};
    };
    const int part_steps = work.part_steps(num_rows);
    for (int part = 0; part < work.num_steps; part += part_steps) {
        const int part_end = part + part_steps < work.num_steps ? part + part_steps : work.num_steps;
        for (int pair = 0; pair < num_pairs; pair++) {
            const Slice two = panels_of(pair);
            const bool is_last = pair + 1 == num_pairs;
            const char* behind = !is_last ? work.weights(two.end, part)
                                          : part_end < work.num_steps ? work.weights(panels.begin, part_end) : work.weights(next, 0);
            for (int step = part; step < part_end; step += work.block_steps) {
                const int next_step = step + work.block_steps;
                const char* ahead = next_step < part_end ? work.weights(two.begin, next_step) : behind;
                multiply_block(work, row, num_rows, two.begin, two.end - two.begin, step, ahead, sums[pair]);
            }
        }
    }
    for (int pair = 0; pair < num_pairs; pair++)
        for (int r = 0; r < num_rows; r++) {
            const Slice two = panels_of(pair);
            finish(work.linear, sums[pair] + r * SUMS_STRIDE, row + r, two.begin, two.end - two.begin, out);
        }
}

void linear(const Linear& linear, Rows x, int num_rows, int panel_begin, int panel_end, Output out) {
    constexpr int TOGETHER = PAIR * PAIRS_TOGETHER;
    const Work work(linear, x, num_rows);
    const UnitInUse unit(x.by_tiles, linear);
    for (int row = 0; row < num_rows; row += CHUNK_ROWS) {  // their inputs stay in the L2 cache
        const int rows = num_rows - row < CHUNK_ROWS ? num_rows - row : CHUNK_ROWS;
        // With the last rows, prefetch continues into the next slice, which this thread usually gets.
        const int last_read = row + rows < num_rows ? panel_end : num_panels(linear);
        for (int panel = panel_begin; panel < panel_end; panel += TOGETHER) {
            const int end = panel_end - panel < TOGETHER ? panel_end : panel + TOGETHER;
            const int next = end + PAIR <= last_read ? end : panel_begin;
            multiply_panels(work, row, rows, {panel, end}, next, out);
        }
    }
}

}  // namespace
}  // namespace forerun::FORERUN_TIER
