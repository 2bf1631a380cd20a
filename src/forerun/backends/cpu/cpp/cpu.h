// Which instruction sets this machine can run: a function has_NAME for each tier of CMakeLists.txt. The build asks
// (runnable_tiers.cpp) to compile no more than this machine needs, and the library when it is loaded (dispatch.cpp).
#pragma once
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace forerun {
namespace {

inline bool has_portable() { return true; }

#if defined(__x86_64__) && defined(__GNUC__)
constexpr uint32_t AVX_VNNI = 1 << 4, AVX512_BF16 = 1 << 5;  // older headers lack their names
constexpr uint32_t AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25;

// Features that the processor reports, and registers that the operating system saves. Queried here, since with one
// compiler (zig) __builtin_cpu_supports always returns false.
struct Cpu {
    uint32_t leaf_1_ecx = 0, leaf_7_ebx = 0, leaf_7_ecx = 0, leaf_7_edx = 0, leaf_7_1_eax = 0, saved = 0;
    bool is_amd = false;

    Cpu() {
        uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
        if (__get_cpuid(0, &eax, &ebx, &ecx, &edx)) is_amd = ecx == signature_AMD_ecx;
        if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) leaf_1_ecx = ecx;
        if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
            leaf_7_ebx = ebx, leaf_7_ecx = ecx, leaf_7_edx = edx;
            if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) leaf_7_1_eax = eax;
        }
        if (leaf_1_ecx & bit_OSXSAVE) asm volatile("xgetbv" : "=a"(saved), "=d"(edx) : "c"(0));
    }
};

inline const Cpu& cpu() {
    static const Cpu found;
    return found;
}

inline bool has_all(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }

inline bool has_avx2() {
    constexpr uint32_t YMM = 0x6;  // state components of SSE and AVX
    return has_all(cpu().saved, YMM) && has_all(cpu().leaf_1_ecx, bit_FMA | bit_F16C) && cpu().leaf_7_ebx & bit_AVX2;
}
inline bool has_avx2_vnni() { return has_avx2() && cpu().leaf_7_1_eax & AVX_VNNI; }
inline bool has_avx512() {
    constexpr uint32_t ZMM = 0xe6;  // and those of AVX-512, with the masks
    return has_avx2() && has_all(cpu().saved, ZMM) &&
           has_all(cpu().leaf_7_ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL);
}
inline bool has_avx512_vnni() { return has_avx512() && cpu().leaf_7_ecx & bit_AVX512VNNI; }
inline bool has_avx512_bf16() { return has_avx512_vnni() && cpu().leaf_7_1_eax & AVX512_BF16; }
// Linux gives a process the tiles' registers only if it asks for them, and may refuse.
inline bool has_avx512_amx() {
#ifdef __linux__
    constexpr uint32_t TILES = 0x60000;  // state components: configuration and data
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return has_avx512_bf16() && has_all(cpu().saved, TILES) && has_all(cpu().leaf_7_edx, AMX_TILE | AMX_INT8 | AMX_BF16) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}
#endif

#if defined(__aarch64__)
inline bool has_neon() {  // with the dot product, which Apple's processors all have
#ifdef __linux__
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    return true;
#endif
}
#endif

}  // namespace
}  // namespace forerun
