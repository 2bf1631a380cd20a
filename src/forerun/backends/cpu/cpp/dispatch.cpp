#include "dispatch.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "export.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace forerun {

#define TIER(name) const Kernels* kernels_##name();
FORERUN_TIERS  // CMakeLists.txt: TIER(...) for every instruction set that was compiled, the best first
#undef TIER

namespace {

struct Tier {
    const Kernels* table;
    bool runs_here;
};

#if defined(__x86_64__) && defined(__GNUC__)
constexpr uint32_t AVX_VNNI = 1 << 4, AVX512_BF16 = 1 << 5;  // older headers lack their names

// Features that the processor reports, and registers that the operating system saves. Queried here, since with one
// compiler (zig) __builtin_cpu_supports always returns false.
struct Cpu {
    uint32_t leaf_1_ecx = 0, leaf_7_ebx = 0, leaf_7_ecx = 0, leaf_7_1_eax = 0, saved = 0;
    bool is_amd = false;

    Cpu() {
        uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
        if (__get_cpuid(0, &eax, &ebx, &ecx, &edx)) is_amd = ecx == signature_AMD_ecx;
        if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) leaf_1_ecx = ecx;
        if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
            leaf_7_ebx = ebx, leaf_7_ecx = ecx;
            if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) leaf_7_1_eax = eax;
        }
        if (leaf_1_ecx & bit_OSXSAVE) asm volatile("xgetbv" : "=a"(saved), "=d"(edx) : "c"(0));
    }
};

const Cpu& cpu() {
    static const Cpu found;
    return found;
}

bool has_all(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }

bool has_avx2() {
    constexpr uint32_t YMM = 0x6;  // state components of SSE and AVX
    return has_all(cpu().saved, YMM) && has_all(cpu().leaf_1_ecx, bit_FMA | bit_F16C) && cpu().leaf_7_ebx & bit_AVX2;
}
bool has_avx2_vnni() { return has_avx2() && cpu().leaf_7_1_eax & AVX_VNNI; }
bool has_avx512() {
    constexpr uint32_t ZMM = 0xe6;  // and those of AVX-512, with the masks
    return has_avx2() && has_all(cpu().saved, ZMM) &&
           has_all(cpu().leaf_7_ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL);
}
bool has_avx512_vnni() { return has_avx512() && cpu().leaf_7_ecx & bit_AVX512VNNI; }
bool has_avx512_bf16() { return has_avx512_vnni() && cpu().leaf_7_1_eax & AVX512_BF16; }
#endif

#if defined(__aarch64__)
bool has_neon() {  // with the dot product, which Apple's processors all have
#ifdef __linux__
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    return true;
#endif
}
#endif

bool has_portable() { return true; }

const Kernels* find(const char* name) {
#define TIER(name) {kernels_##name(), has_##name()},
    const Tier tiers[] = {FORERUN_TIERS};
#undef TIER
    for (const Tier& tier : tiers)
        if (tier.runs_here && (!name || !std::strcmp(name, tier.table->name))) return tier.table;
    return nullptr;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

bool can_stream() {
#if defined(__x86_64__) && defined(__GNUC__)
    return cpu().is_amd;
#else
    return true;
#endif
}

const Kernels& kernels() {
    const Kernels* table = chosen.load(std::memory_order_acquire);
    if (!table) {
        table = find(nullptr);
        chosen.store(table, std::memory_order_release);
    }
    return *table;
}

}  // namespace forerun

// Must change with every function or struct that Python uses, so that an old library is detected, and with the layout
// of packed weights, which are stored in files.
FORERUN_EXPORT int forerun_version() { return 18; }

// Name of the instruction set in use.
FORERUN_EXPORT const char* forerun_tier() { return forerun::kernels().name; }

// Selects another instruction set, for tests; null selects the best. Returns 0 if this machine or build lacks it.
FORERUN_EXPORT int forerun_select_tier(const char* name) {
    const forerun::Kernels* table = forerun::find(name);
    if (!table) return 0;
    forerun::chosen.store(table, std::memory_order_release);
    return 1;
}
