// Random linear layers of every format, on every instruction set of this machine, with every buffer of exactly its
// size: for a library built with sanitizers (cmake -DFORERUN_SANITIZE=ON), which end the program at the first wrong
// access. Products must be those of double precision, and a row the same bits alone.
//
// g++ -std=c++17 -fsanitize=address,undefined -Isrc/forerun/backends/cpu/cpp tests/backends/cpu/check_linear.cpp
//     libforerun_native.so
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
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

using Random = std::mt19937;

int below(Random& random, int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); }

float normal(Random& random) { return std::normal_distribution<float>()(random); }

// A weight, its values in double precision, and the room that roundings of its inputs need.
struct Weight {
    Linear linear{};
    std::vector<uint8_t> bytes, zeros;
    std::vector<float> scales, bias;
    std::vector<double> values;
    double tolerance;  // of the sizes of the products

    Weight(Random& random, Format format) {
        linear.format = static_cast<int32_t>(format);
        linear.num_in = 1 + below(random, 700);
        linear.num_out = 1 + below(random, 70);
        if (below(random, 2)) linear.paired = linear.num_out, linear.num_out *= 2;
        linear.group = 32 << below(random, 3);
        if (is_blocks(linear.format)) {
            const int block = layout_of(linear.format).file_inputs;
            linear.num_in = (linear.num_in + block - 1) / block * block;
            fill_blocks(random);
            linear.input_bits = below(random, 2) ? 16 : 8;
        } else {
            fill(random, format);
        }
        for (int n = 0; n < linear.num_out; n++) bias.push_back(normal(random));
        const bool rounds = format == Format::int8 || format == Format::int4 || linear.input_bits == 8;
        tolerance = format == Format::bf16 ? 0.005 : rounds ? 0.03 : 1e-4;
        const Source source{bytes.data(), scales.data(), zeros.data(), bias.data()};
        if (!forerun_pack(&linear, &source, 2)) std::abort();
        if (is_blocks(linear.format)) read_values();
    }
    ~Weight() { forerun_free(const_cast<void*>(linear.weights)); }

    void fill(Random& random, Format format) {
        const int groups = format == Format::int4 ? (linear.num_in + linear.group - 1) / linear.group : 1;
        for (int i = 0; i < linear.num_out * groups; i++) {
            scales.push_back(0.01f + 0.001f * static_cast<float>(below(random, 10)));
            zeros.push_back(static_cast<uint8_t>(below(random, 16)));
        }
        for (int n = 0; n < linear.num_out; n++)
            for (int k = 0; k < linear.num_in; k++) {
                const int place = n * groups + (groups > 1 ? k / linear.group : 0);
                const size_t at = static_cast<size_t>(place);
                const float plain = normal(random);
                uint32_t bits;
                std::memcpy(&bits, &plain, sizeof bits);
                if (format == Format::f32) {
                    append(&plain, sizeof plain), values.push_back(plain);
                } else if (format == Format::bf16) {
                    const uint16_t half = static_cast<uint16_t>(bits >> 16);
                    const uint32_t cut = bits & 0xffff0000u;
                    float value;
                    std::memcpy(&value, &cut, sizeof value);
                    append(&half, sizeof half), values.push_back(value);
                } else if (format == Format::int4) {
                    const uint8_t value = static_cast<uint8_t>(below(random, 16));
                    append(&value, 1), values.push_back((value - zeros[at]) * static_cast<double>(scales[at]));
                } else {
                    const int8_t value = static_cast<int8_t>(below(random, 255) - 127);
                    append(&value, 1), values.push_back(value * static_cast<double>(scales[at]));
                }
            }
    }
    // Any bytes, but float16 numbers between 1/64 and 1/8 wherever they may stand: at either end of a block.
    void fill_blocks(Random& random) {
        const BlockLayout& layout = layout_of(linear.format);
        const size_t size = static_cast<size_t>(layout.file_bytes);
        for (int i = 0; i < linear.num_out * (linear.num_in / layout.file_inputs); i++) {
            std::vector<uint8_t> block(size);
            for (uint8_t& byte : block) byte = static_cast<uint8_t>(random());
            for (const size_t at : {size_t{1}, size_t{3}, size - 1})
                if (at != 3 || layout.has_minima) block[at] = static_cast<uint8_t>(0x24 + below(random, 12));
            append(block.data(), size);
        }
    }
    // What the packed weight stands for: its products with every unit vector. Their values are tested from Python.
    void read_values() {
        const size_t num_in = static_cast<size_t>(linear.num_in), num_out = static_cast<size_t>(linear.num_out);
        std::vector<float> units(num_in * num_in), y(num_in * num_out);
        for (size_t k = 0; k < num_in; k++) units[k * num_in + k] = 1.0f;
        forerun_linear(&linear, units.data(), linear.num_in, y.data(), nullptr, 0, 1);
        for (size_t n = 0; n < num_out; n++)
            for (size_t k = 0; k < num_in; k++) values.push_back(static_cast<double>(y[k * num_out + n] - bias[n]));
    }
    void append(const void* value, size_t size) {
        const uint8_t* begin = static_cast<const uint8_t*>(value);
        bytes.insert(bytes.end(), begin, begin + size);
    }
};

std::vector<float> run(const Weight& w, const std::vector<float>& x, int first_row, int num_rows, Epilogue epilogue,
                       int num_threads) {
    const int width = epilogue == Epilogue::silu_mul ? w.linear.paired : w.linear.num_out;
    const auto begin = x.begin() + static_cast<ptrdiff_t>(first_row) * w.linear.num_in;
    const std::vector<float> rows(begin, begin + static_cast<ptrdiff_t>(num_rows) * w.linear.num_in);
    std::vector<float> y(static_cast<size_t>(num_rows * width), 1.0f);
    const float* residual = epilogue == Epilogue::add ? y.data() : nullptr;
    forerun_linear(&w.linear, rows.data(), num_rows, y.data(), residual, static_cast<int>(epilogue), num_threads);
    return y;
}

bool check(Random& random, Format format) {
    const Weight w(random, format);
    const int most_rows = below(random, 4) ? 20 : 120;  // more than the kernels multiply with one panel after another
    const int num_rows = 1 + below(random, most_rows), num_in = w.linear.num_in, num_out = w.linear.num_out;
    std::vector<float> x;
    for (int i = 0; i < num_rows * num_in; i++) x.push_back(normal(random));
    const Epilogue epilogue = w.linear.paired && below(random, 2) ? Epilogue::silu_mul : Epilogue::add;
    const std::vector<float> y = run(w, x, 0, num_rows, epilogue, 1 + below(random, 3));
    const int width = static_cast<int>(y.size()) / num_rows, chosen = below(random, num_rows);
    const std::vector<float> alone = run(w, x, chosen, 1, epilogue, 1);
    if (std::memcmp(alone.data(), y.data() + chosen * width, static_cast<size_t>(width) * 4)) return false;
    if (epilogue == Epilogue::silu_mul) return true;
    for (int t = 0; t < num_rows; t++)
        for (int n = 0; n < num_out; n++) {
            double expected = 1.0 + w.bias[static_cast<size_t>(n)], size = 1.0;
            for (int k = 0; k < num_in; k++) {
                const double product = w.values[static_cast<size_t>(n * num_in + k)] *
                                       static_cast<double>(x[static_cast<size_t>(t * num_in + k)]);
                expected += product, size += std::fabs(product);
            }
            if (!(std::fabs(y[static_cast<size_t>(t * num_out + n)] - expected) <= w.tolerance * size)) return false;
        }
    return true;
}

}  // namespace

int main() {
    for (const char* tier : {"portable", "neon", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "avx512_amx"}) {
        if (!forerun_select_tier(tier)) continue;
        Random random(1);
        for (int round = 0; round < 260; round++)
            if (!check(random, static_cast<Format>(round % 13))) {
                std::printf("%s: case %d is wrong\n", tier, round);
                return 1;
            }
        std::printf("%s: ok\n", tier);
    }
}
