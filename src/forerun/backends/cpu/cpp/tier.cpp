// The table of kernels for one instruction set: compiled once for each, with the flags of CMakeLists.txt. Their tiles are
// in files of their own.
#include "attention.h"
#include "kernels.h"
#include "linear.h"
#include "mixers.h"
#include "prepare.h"
#include "rows.h"
#include "sampling.h"

namespace forerun::FORERUN_TIER {

#define FORERUN_TEXT_OF(name) #name
#define FORERUN_NAME(name) FORERUN_TEXT_OF(name)

const Kernels* kernels() {
    static const Kernels table = {
        FORERUN_NAME(FORERUN_TIER), input_bits, tile_bytes, prepare, linear, rms_norm, silu_mul, gelu_mul, rope_append, attend, join,
        sigmoid_mul, convolve, delta_net, sample, topk,
    };
    return &table;
}

}  // namespace forerun::FORERUN_TIER
