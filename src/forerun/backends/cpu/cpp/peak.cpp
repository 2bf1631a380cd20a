// Measures a core's peak rate of multiply-adds: only the instructions of each tier, on registers, without memory.
//
// A kernel also loads data, unpacks codes and applies scales, so none reaches the peak.
#include <cstdint>
#include <cstring>

#include "dispatch.h"
#include "export.h"
#include "kernels.h"
#include "pool.h"

namespace {

using Loop = int64_t (*)(int64_t num_rounds);  // returns the number of multiply-adds

// Types of the inputs, numbered as in forerun.backends.cpu.probe.
constexpr int NUM_INPUTS = 4;  // float32, bfloat16, int16, int8

struct TierLoops {
    const char* tier;
    Loop loops[NUM_INPUTS];
};

#if defined(__x86_64__) && defined(__GNUC__)

// Twelve independent sums hide the latency of instructions that each add to a sum; six are enough if the addition is a
// separate instruction that takes one cycle.
#define TWELVE(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11)
#define SIX(x) x(0, 6) x(1, 7) x(2, 8) x(3, 9) x(4, 10) x(5, 11)

#define DEFINE_LOOP(name, products, body)                                                                            \
    int64_t name(int64_t num_rounds) {                                                                               \
        int64_t left = num_rounds;                                                                                   \
        __asm__ volatile(                                                                                            \
            "vpxor %%xmm12, %%xmm12, %%xmm12\n vpxor %%xmm13, %%xmm13, %%xmm13\n" TWELVE(CLEAR)                      \
            "1:\n" body "sub $1, %0\n jnz 1b\n vzeroupper\n"                                                         \
            : "+r"(left)                                                                                             \
            :                                                                                                        \
            : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",         \
              "xmm11", "xmm12", "xmm13", "xmm14");                                                                   \
        return num_rounds * products;                                                                                \
    }

#define CLEAR(i) "vpxor %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n"
#define FMA256(i) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #i "\n"
#define FMA512(i) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" #i "\n"
#define MADD(v, i, t) "vpmaddwd %%" v "12, %%" v "13, %%" v #t "\n vpaddd %%" v #t ", %%" v #i ", %%" v #i "\n"
#define MADD256(i, t) MADD("ymm", i, t)
#define MADD512(i, t) MADD("zmm", i, t)
#define BYTES(v, i, t)                                                                                               \
    "vpmaddubsw %%" v "12, %%" v "13, %%" v #t "\n vpmaddwd %%" v "12, %%" v #t ", %%" v #t "\n vpaddd %%" v #t       \
    ", %%" v #i ", %%" v #i "\n"
#define BYTES256(i, t) BYTES("ymm", i, t)
#define BYTES512(i, t) BYTES("zmm", i, t)

#ifdef FORERUN_KNOWS_avx2
DEFINE_LOOP(fma_256, 12 * 8, TWELVE(FMA256))
DEFINE_LOOP(madd_256, 6 * 16, SIX(MADD256))
DEFINE_LOOP(bytes_256, 6 * 32, SIX(BYTES256))
#endif
#ifdef FORERUN_KNOWS_avx2_vnni
#define DPWSSD256(i) "%{vex%} vpdpwssd %%ymm12, %%ymm13, %%ymm" #i "\n"
#define DPBUSD256(i) "%{vex%} vpdpbusd %%ymm12, %%ymm13, %%ymm" #i "\n"
DEFINE_LOOP(dpwssd_256, 12 * 16, TWELVE(DPWSSD256))
DEFINE_LOOP(dpbusd_256, 12 * 32, TWELVE(DPBUSD256))
#endif
#ifdef FORERUN_KNOWS_avx512
DEFINE_LOOP(fma_512, 12 * 16, TWELVE(FMA512))
DEFINE_LOOP(madd_512, 6 * 32, SIX(MADD512))
DEFINE_LOOP(bytes_512, 6 * 64, SIX(BYTES512))
#endif
#if defined(FORERUN_KNOWS_avx512_vnni) || defined(FORERUN_KNOWS_avx512_bf16)
#define DPWSSD512(i) "vpdpwssd %%zmm12, %%zmm13, %%zmm" #i "\n"
#define DPBUSD512(i) "vpdpbusd %%zmm12, %%zmm13, %%zmm" #i "\n"
DEFINE_LOOP(dpwssd_512, 12 * 32, TWELVE(DPWSSD512))
DEFINE_LOOP(dpbusd_512, 12 * 64, TWELVE(DPBUSD512))
#endif
#ifdef FORERUN_KNOWS_avx512_bf16
#define DPBF16(i) "vdpbf16ps %%zmm12, %%zmm13, %%zmm" #i "\n"
DEFINE_LOOP(dpbf16_512, 12 * 32, TWELVE(DPBF16))
#endif

#endif

// Tiers that are missing here, such as those of other processors, have no known peak.
constexpr TierLoops TIERS[] = {
#if defined(__x86_64__) && defined(__GNUC__)
#ifdef FORERUN_KNOWS_avx2
    {"avx2", {fma_256, fma_256, madd_256, bytes_256}},
#endif
#ifdef FORERUN_KNOWS_avx2_vnni
    {"avx2_vnni", {fma_256, fma_256, dpwssd_256, dpbusd_256}},
#endif
#ifdef FORERUN_KNOWS_avx512
    {"avx512", {fma_512, fma_512, madd_512, bytes_512}},
#endif
#ifdef FORERUN_KNOWS_avx512_vnni
    {"avx512_vnni", {fma_512, fma_512, dpwssd_512, dpbusd_512}},
#endif
#ifdef FORERUN_KNOWS_avx512_bf16
    {"avx512_bf16", {fma_512, dpbf16_512, dpwssd_512, dpbusd_512}},
    {"avx512_amx", {fma_512, dpbf16_512, dpwssd_512, dpbusd_512}},  // of few rows: the matrix unit takes many
#endif
#endif
    {"portable", {nullptr, nullptr, nullptr, nullptr}},
};

struct PeakJob {
    Loop loop;
    int64_t num_rounds;
    int64_t products[64];
};

void run_peak(void* context, forerun::Member& self) {
    PeakJob& job = *static_cast<PeakJob*>(context);
    (void)self.share(self.num_threads(), 1,
                     [&](forerun::Slice part) {
                         for (int number = part.begin; number < part.end; number++)
                             job.products[number] = job.loop(job.num_rounds);
                     });
}

}  // namespace

// Runs the fastest instructions of the current tier for these inputs, at least one round on each of at most 64 threads,
// and returns the total number of multiply-adds; 0 if the tier is not known.
FORERUN_EXPORT int64_t forerun_multiply_adds(int inputs, int64_t num_rounds, int num_threads) {
    if (inputs < 0 || inputs >= NUM_INPUTS || num_rounds < 1 || num_threads > 64) return 0;
    for (const TierLoops& tier : TIERS) {
        if (std::strcmp(tier.tier, forerun::kernels().name) || !tier.loops[inputs]) continue;
        PeakJob job{tier.loops[inputs], num_rounds, {}};
        forerun::run_job(run_peak, &job, num_threads);
        int64_t all = 0;
        for (const int64_t products : job.products) all += products;
        return all;
    }
    return 0;
}
