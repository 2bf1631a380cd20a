#include "pack.h"

#include <cstdlib>
#include <cstring>

#include "blocks.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace forerun {
namespace {

constexpr int64_t LINE = 64, HUGE_PAGE = int64_t{2} << 20;

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

int bits_per_weight(Format format) {
    return format == Format::f32 ? 32 : format == Format::bf16 ? 16 : format == Format::int4 ? 4 : 8;
}

// The largest group of inputs that divides them.
int group_for(int padded_in) { return padded_in % 128 == 0 ? 128 : padded_in % 64 == 0 ? 64 : 32; }

// Weights of which `inputs` lie together for each output.
template <class T, class Stored>
void pack_values(const Linear& linear, const void* values, int inputs, int offset) {
    Stored* out = static_cast<Stored*>(const_cast<void*>(linear.weights));
    for (int panel = 0; panel < num_panels(linear); panel++, out += static_cast<int64_t>(linear.padded_in) * PANEL)
        for (int lane = 0; lane < PANEL; lane++) {
            const int row = row_of(linear, panel, lane);
            const T* from = static_cast<const T*>(values) + static_cast<int64_t>(row) * linear.num_in;
            for (int k = 0; k < linear.padded_in; k++) {
                const T value = row >= 0 && k < linear.num_in ? from[k] : T{};
                const int64_t place = static_cast<int64_t>(k / inputs * PANEL + lane) * inputs + k % inputs;
                out[place] = static_cast<Stored>(value + offset);
            }
        }
}

void pack_nibbles(const Linear& linear, const void* values) {
    uint8_t* out = static_cast<uint8_t*>(const_cast<void*>(linear.weights));
    for (int panel = 0; panel < num_panels(linear); panel++, out += static_cast<int64_t>(linear.padded_in) * PANEL / 2)
        for (int lane = 0; lane < PANEL; lane++) {
            const int row = row_of(linear, panel, lane);
            const uint8_t* from = static_cast<const uint8_t*>(values) + static_cast<int64_t>(row) * linear.num_in;
            if (row < 0) continue;
            for (int k = 0; k < linear.num_in; k++)
                out[(k / 8 * PANEL + lane) * 4 + k % 4] |= static_cast<uint8_t>((from[k] & 15) << (k % 8 / 4 * 4));
        }
}

// A number for each of `count` groups of an output's inputs: [num_out][count] to [panel][count][16].
template <class T>
void pack_by_group(const Linear& linear, const T* values, int count, T* out) {
    for (int panel = 0; panel < num_panels(linear); panel++)
        for (int g = 0; g < count; g++)
            for (int lane = 0; lane < PANEL; lane++) {
                const int row = row_of(linear, panel, lane);
                *out++ = row >= 0 ? values[static_cast<int64_t>(row) * count + g] : T{};
            }
}

}  // namespace

int row_of(const Linear& linear, int panel, int lane) {
    const int idx = (linear.paired ? panel / 2 : panel) * PANEL + lane;
    if (idx >= (linear.paired ? linear.paired : linear.num_out)) return -1;
    return idx + (linear.paired && panel % 2 ? linear.paired : 0);
}

void* allocate(int64_t bytes) {
    const int64_t unit = bytes >= HUGE_PAGE ? HUGE_PAGE : LINE;
    const size_t size = static_cast<size_t>(round_up(bytes, unit));
    void* memory = std::aligned_alloc(static_cast<size_t>(unit), size);
#ifdef __linux__
    if (memory && unit == HUGE_PAGE) madvise(memory, size, MADV_HUGEPAGE);  // a wish: small pages work as well
#endif
    return memory;
}

int64_t pack(Linear& linear, const Source& source) {
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
    const int64_t scales_at = has_blocks ? values / PANEL / unit * layout_of(linear.format).record_bytes()
                                         : round_up(values * bits_per_weight(format) / 8, LINE);
    const int64_t zeros_at = scales_at + outputs * groups * 4;
    const int64_t bias_at = zeros_at + (format == Format::int4 ? outputs * groups : 0);
    const int64_t bytes = bias_at + (source.bias ? static_cast<int64_t>(linear.num_out) * 4 : 0);
    char* memory = static_cast<char*>(allocate(bytes));
    if (!memory) return 0;
    linear.weights = memory;
    linear.scales = groups ? reinterpret_cast<float*>(memory + scales_at) : nullptr;
    linear.zeros = format == Format::int4 ? reinterpret_cast<uint8_t*>(memory + zeros_at) : nullptr;
    linear.bias = source.bias ? reinterpret_cast<float*>(memory + bias_at) : nullptr;

    if (has_blocks) pack_blocks(linear, static_cast<const uint8_t*>(source.values));
    if (format == Format::f32) pack_values<float, float>(linear, source.values, 1, 0);
    if (format == Format::bf16) pack_values<uint16_t, uint16_t>(linear, source.values, 2, 0);
    if (format == Format::int8 || format == Format::int8_wide)
        pack_values<int8_t, uint8_t>(linear, source.values, 4, 128);
    if (format == Format::int4) {
        std::memset(memory, 0, static_cast<size_t>(scales_at));
        pack_nibbles(linear, source.values);
        pack_by_group(linear, source.zeros, static_cast<int>(groups), reinterpret_cast<uint8_t*>(memory + zeros_at));
    }
    if (groups)
        pack_by_group(linear, source.scales, static_cast<int>(groups), reinterpret_cast<float*>(memory + scales_at));
    if (source.bias) std::memcpy(memory + bias_at, source.bias, static_cast<size_t>(linear.num_out) * 4);
    return bytes;
}

}  // namespace forerun
