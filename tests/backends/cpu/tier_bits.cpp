// Products of every format with every instruction set of this machine, as one number for each: the same for all of them,
// and for those of another machine. The portable kernels are left out, as they round products and sums of floats apart.
//
// c++ -std=c++17 -Isrc/forerun/backends/cpu/cpp tests/backends/cpu/tier_bits.cpp libforerun_native.so
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "blocks.h"
#include "kernels.h"
#include "pack.h"

using namespace forerun;

extern "C" {
int forerun_select_tier(const char* name);
int64_t forerun_pack(Linear* linear, const Source* source, int num_threads);
void forerun_free(void* memory);
void forerun_linear(const Linear* linear, const float* x, int num_rows, float* y, const float* residual, int epilogue,
                    int num_threads);
}

namespace {

uint32_t state = 1;

uint32_t next() {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

float uniform() { return static_cast<float>(static_cast<int32_t>(next() % 20001u) - 10000) / 8192.0f; }

// Bytes of a weight [num_out][num_in] as Python has it; scales of blocks lie between 1/64 and 2.
std::vector<uint8_t> weight_bytes(const Linear& linear) {
    std::vector<uint8_t> bytes;
    const int count = linear.num_out * linear.num_in;
    const auto put = [&](const void* from, size_t size) {
        bytes.insert(bytes.end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + size);
    };
    if (is_blocks(linear.format)) {
        const BlockLayout& layout = layout_of(linear.format);
        const size_t size = static_cast<size_t>(layout.file_bytes);
        for (int i = 0; i < count / layout.file_inputs; i++) {
            std::vector<uint8_t> block(size);
            for (uint8_t& byte : block) byte = static_cast<uint8_t>(next());
            for (const size_t at : {size_t{1}, size_t{3}, size - 3, size - 1})
                if (at == 1 || at == size - 1 || layout.has_minima)
                    block[at] = static_cast<uint8_t>(0x24 + next() % 12u);
            if (layout.scales == Scales::powers) block[0] = static_cast<uint8_t>(122u + next() % 8u);
            put(block.data(), size);
        }
        return bytes;
    }
    for (int i = 0; i < count; i++) {
        const float plain = uniform();
        uint32_t bits;
        std::memcpy(&bits, &plain, sizeof bits);
        const uint16_t half = static_cast<uint16_t>(bits >> 16);
        const int8_t byte = static_cast<int8_t>(static_cast<int32_t>(next() % 255u) - 127);
        const uint8_t nibble = static_cast<uint8_t>(next() % 16u);
        switch (static_cast<Format>(linear.format)) {
            case Format::f32: put(&plain, 4); break;
            case Format::bf16: put(&half, 2); break;
            case Format::int4: put(&nibble, 1); break;
            default: put(&byte, 1);
        }
    }
    return bytes;
}

// A number that any difference in any bit of any output changes; the outputs are counted in num_checks.
uint64_t products(int format, int input_bits, int64_t* num_checks) {
    uint64_t hash = 1469598103934665603u;
    const int sizes[][2] = {{33, 100}, {50, 640}, {70, 1152}};
    for (const auto& size : sizes) {
        Linear linear{};
        linear.format = format;
        linear.input_bits = input_bits;
        linear.num_out = size[0];
        linear.num_in = is_blocks(format) ? (size[1] + 255) / 256 * 256 : size[1];
        linear.group = 32;
        const std::vector<uint8_t> bytes = weight_bytes(linear);
        const size_t groups = static_cast<size_t>(linear.num_out * ((linear.num_in + 31) / 32));
        std::vector<float> scales(groups);
        std::vector<uint8_t> zeros(groups);
        for (float& scale : scales) scale = 0.01f + 0.001f * static_cast<float>(next() % 10u);
        for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(next() % 16u);
        const Source source{bytes.data(), scales.data(), zeros.data(), nullptr};
        if (!forerun_pack(&linear, &source, 2)) return 0;
        for (const int num_rows : {1, 2, 3, 5, 8, 13, 16, 40, 100}) {
            std::vector<float> x(static_cast<size_t>(num_rows * linear.num_in));
            std::vector<float> y(static_cast<size_t>(num_rows * linear.num_out));
            for (float& value : x) value = uniform();
            for (const int num_threads : {1, 2}) {
                forerun_linear(&linear, x.data(), num_rows, y.data(), nullptr, 0, num_threads);
                *num_checks += static_cast<int64_t>(y.size());
                for (const float value : y) {
                    uint32_t bits;
                    std::memcpy(&bits, &value, sizeof bits);
                    hash = (hash ^ bits) * 1099511628211u;
                }
            }
        }
        forerun_free(const_cast<void*>(linear.weights));
    }
    return hash;
}

}  // namespace

int main() {
    for (const char* tier : {"neon", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "avx512_amx"}) {
        if (!forerun_select_tier(tier)) continue;
        state = 1;
        int64_t num_checks = 0;
        uint64_t all = 1469598103934665603u;
        for (int format = 0; format <= static_cast<int>(Format::mxfp4); format++)
            for (const int input_bits : {16, 8}) all = (all ^ products(format, input_bits, &num_checks)) * 1099511628211u;
        std::printf("%s %lld outputs %016llx\n", tier, static_cast<long long>(num_checks),
                    static_cast<unsigned long long>(all));
    }
    return 0;
}
