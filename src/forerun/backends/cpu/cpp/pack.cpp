#include "pack.h"

#include <atomic>
#include <cstring>

#include "blocks.h"
#include "memory.h"
#include "pool.h"
#include "program.h"

#ifdef __linux__
#include <sys/mman.h>
#endif
#ifndef _WIN32
#include <unistd.h>
#endif

namespace forerun {
namespace {

constexpr int64_t LINE = 64, HUGE_PAGE = int64_t{2} << 20;

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

int bits_per_weight(Format format) {
    return format == Format::f32 ? 32 : format == Format::bf16 ? 16 : format == Format::int4 ? 4 : 8;
}

// The largest group size that divides the number of inputs.
int group_for(int padded_in) { return padded_in % 128 == 0 ? 128 : padded_in % 64 == 0 ? 64 : 32; }

// Where a panel's weights begin.
template <class Stored>
Stored* panel_memory(const Linear& linear, int panel, int64_t size) {
    return static_cast<Stored*>(const_cast<void*>(linear.weights)) + panel * size;
}

// Packs weights such that `INPUTS` inputs of each output are adjacent.
template <class T, class Stored, int INPUTS, int OFFSET>
void pack_values(const Linear& linear, int panel, const void* values) {
    Stored* out = panel_memory<Stored>(linear, panel, static_cast<int64_t>(linear.padded_in) * PANEL);
    for (int lane = 0; lane < PANEL; lane++) {
        const int row = row_of(linear, panel, lane), num_in = row >= 0 ? linear.num_in : 0;
        const T* from = static_cast<const T*>(values) + static_cast<int64_t>(row) * num_in;
        for (int k = 0; k < linear.padded_in; k++) {
            const T value = k < num_in ? from[k] : T{};
            out[(k / INPUTS * PANEL + lane) * INPUTS + k % INPUTS] = static_cast<Stored>(value + OFFSET);
        }
    }
}

void pack_nibbles(const Linear& linear, int panel, const void* values) {
    const int64_t size = static_cast<int64_t>(linear.padded_in) * PANEL / 2;
    uint8_t* out = panel_memory<uint8_t>(linear, panel, size);
    std::memset(out, 0, static_cast<size_t>(size));
    for (int lane = 0; lane < PANEL; lane++) {
        const int row = row_of(linear, panel, lane);
        const uint8_t* from = static_cast<const uint8_t*>(values) + static_cast<int64_t>(row) * linear.num_in;
        if (row < 0) continue;
        for (int k = 0; k < linear.num_in; k++)
            out[(k / 8 * PANEL + lane) * 4 + k % 4] |= static_cast<uint8_t>((from[k] & 15) << (k % 8 / 4 * 4));
    }
}

// Packs a number for each of `count` groups of an output's inputs: [num_out][count] to [panel][count][16].
template <class T>
void pack_by_group(const Linear& linear, int panel, const T* values, int count, const T* packed) {
    T* out = const_cast<T*>(packed) + static_cast<int64_t>(panel) * count * PANEL;
    for (int g = 0; g < count; g++)
        for (int lane = 0; lane < PANEL; lane++) {
            const int row = row_of(linear, panel, lane);
            *out++ = row >= 0 ? values[static_cast<int64_t>(row) * count + g] : T{};
        }
}

// Reads bytes [place, place + size) of a file, or zeros if `place` is negative; false if the file is too short.
bool read_at(int file, int64_t place, uint8_t* out, int64_t size) {
    if (place < 0) {
        std::memset(out, 0, static_cast<size_t>(size));
        return true;
    }
#ifdef _WIN32
    (void)file, (void)out;
    return size == 0;
#else
    while (size > 0) {
        const ssize_t num_read = pread(file, out, static_cast<size_t>(size), static_cast<off_t>(place));
        if (num_read <= 0) return false;
        place += num_read, out += num_read, size -= num_read;
    }
    return true;
#endif
}

struct PackJob {
    const Linear& linear;
    const Source& source;
    std::atomic<int64_t> result;

    PackJob(const Linear& of, const Source& from, int64_t bytes) : linear(of), source(from), result(bytes) {}
};

// Packs a panel of a block format; `room` has space for its rows. Consecutive rows are read in one call.
bool pack_rows(const PackJob& job, int panel, uint8_t* room, uint8_t* memory) {
    const uint8_t* rows[PANEL];
    const int64_t row_bytes = block_row_bytes(job.linear);
    int64_t begin = 0, num_bytes = 0;  // of consecutive rows, to be read to the end of the used part of `room`
    uint8_t* end = room;
    for (int lane = 0; lane < PANEL; lane++) {
        const int row = row_of(job.linear, panel, lane);
        rows[lane] = nullptr;
        if (row < 0) continue;
        if (!job.source.places) {
            rows[lane] = static_cast<const uint8_t*>(job.source.values) + row * row_bytes;
            continue;
        }
        const int64_t place = job.source.places[row];
        if (num_bytes && (begin < 0 || place != begin + num_bytes)) {
            if (!read_at(job.source.file, begin, end - num_bytes, num_bytes)) return false;
            num_bytes = 0;
        }
        if (!num_bytes) begin = place;
        rows[lane] = end;
        end += row_bytes, num_bytes += row_bytes;
    }
    if (!read_at(job.source.file, begin, end - num_bytes, num_bytes)) return false;
    pack_blocks(job.linear, memory, rows);
    return true;
}

void pack_panel(const Linear& linear, const Source& source, int panel) {
    const int groups = linear.group ? linear.padded_in / linear.group : 0;
    switch (static_cast<Format>(linear.format)) {
        case Format::f32: pack_values<float, float, 1, 0>(linear, panel, source.values); break;
        case Format::bf16: pack_values<uint16_t, uint16_t, 2, 0>(linear, panel, source.values); break;
        case Format::int4:
            pack_nibbles(linear, panel, source.values);
            pack_by_group(linear, panel, source.zeros, groups, linear.zeros);
            pack_by_group(linear, panel, source.scales, groups, linear.scales);
            break;
        default:
            pack_values<int8_t, uint8_t, 4, 128>(linear, panel, source.values);
            pack_by_group(linear, panel, source.scales, 1, linear.scales);
    }
}

void pack_block_panel(PackJob& job, int panel, Scratch& scratch) {
    char* room = scratch.reserve(job.source.places ? PANEL * block_row_bytes(job.linear) : LINE);
    if (!room) return job.result.store(0);
    uint8_t* memory = panel_memory<uint8_t>(job.linear, panel, block_panel_bytes(job.linear));
    if (!pack_rows(job, panel, reinterpret_cast<uint8_t*>(room), memory)) job.result.store(-1);
}

void run_pack(void* context, Member& self) {
    PackJob& job = *static_cast<PackJob*>(context);
    Scratch scratch;
    (void)self.share(num_panels(job.linear), 1, [&](Slice panels) {
        for (int panel = panels.begin; panel < panels.end && job.result.load(std::memory_order_relaxed) > 0; panel++)
            if (is_blocks(job.linear.format))
                pack_block_panel(job, panel, scratch);
            else
                pack_panel(job.linear, job.source, panel);
    });
}

}  // namespace

int row_of(const Linear& linear, int panel, int lane) {
    const int idx = (linear.paired ? panel / 2 : panel) * PANEL + lane;
    if (idx >= (linear.paired ? linear.paired : linear.num_out)) return -1;
    return idx + (linear.paired && panel % 2 ? linear.paired : 0);
}

void* allocate(int64_t bytes) {
    const int64_t unit = bytes >= HUGE_PAGE ? HUGE_PAGE : LINE;
    void* memory = allocate_aligned(static_cast<size_t>(unit), static_cast<size_t>(round_up(bytes, unit)));
#ifdef __linux__
    // Only a hint: small pages work as well. The part that does not fill a huge page keeps small ones to save memory.
    if (memory && unit == HUGE_PAGE) madvise(memory, static_cast<size_t>(bytes / unit * unit), MADV_HUGEPAGE);
#endif
    return memory;
}

int64_t place(Linear& linear, char* memory, bool has_bias) {
    const Format format = static_cast<Format>(linear.format);
    const bool has_blocks = is_blocks(linear.format);
    const bool is_int = format != Format::f32 && format != Format::bf16 && !has_blocks;
    const int unit = has_blocks ? layout_of(linear.format).inputs : format == Format::int4 ? linear.group : is_int ? 32 : format == Format::bf16 ? 2 : 1;
    linear.padded_in = static_cast<int32_t>(round_up(linear.num_in, unit));
    if (has_blocks)
        linear.group = layout_of(linear.format).group;
    else if (format != Format::int4)
        linear.group = is_int ? group_for(linear.padded_in) : 0;

    const int64_t outputs = static_cast<int64_t>(num_panels(linear)) * PANEL;
    const int64_t groups = format == Format::int4 ? linear.padded_in / linear.group : is_int ? 1 : 0;
    const int64_t values = outputs * linear.padded_in;
    const int64_t scales_at = has_blocks ? block_panel_bytes(linear) * num_panels(linear)
                                         : round_up(values * bits_per_weight(format) / 8, LINE);
    const int64_t zeros_at = scales_at + outputs * groups * 4;
    const int64_t bias_at = zeros_at + (format == Format::int4 ? outputs * groups : 0);
    linear.weights = memory;
    linear.scales = memory && groups ? reinterpret_cast<float*>(memory + scales_at) : nullptr;
    linear.zeros = memory && format == Format::int4 ? reinterpret_cast<uint8_t*>(memory + zeros_at) : nullptr;
    linear.bias = memory && has_bias ? reinterpret_cast<float*>(memory + bias_at) : nullptr;
    return bias_at + (has_bias ? static_cast<int64_t>(linear.num_out) * 4 : 0);
}

int64_t pack(Linear& linear, const Source& source, int num_threads) {
    const int64_t bytes = place(linear, nullptr, source.bias);
    const int64_t bias_bytes = source.bias ? static_cast<int64_t>(linear.num_out) * 4 : 0;
    char* memory = static_cast<char*>(allocate(bytes));
    if (!memory) return 0;
    place(linear, memory, source.bias);
    PackJob job(linear, source, bytes);
    run_job(run_pack, &job, num_threads);
    if (source.bias) std::memcpy(memory + bytes - bias_bytes, source.bias, static_cast<size_t>(bias_bytes));
    if (job.result <= 0) free_aligned(memory);
    return job.result;
}

}  // namespace forerun
