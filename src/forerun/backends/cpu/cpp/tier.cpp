// All kernels for one instruction set: compiled once for each, with the flags of CMakeLists.txt.
#include "attention.h"
#include "kernels.h"
#include "linear.h"
#include "prepare.h"
#include "rows.h"
#include "sampling.h"

namespace forerun {

const Kernels* FORERUN_TIER_FUNCTION() {
    static const Kernels table = {
        FORERUN_TIER_NAME, input_bits, prepare, linear, rms_norm, silu_mul, gelu_mul, rope_append, attend, join, sample, topk,
    };
    return &table;
}

}  // namespace forerun
