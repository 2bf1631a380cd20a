#include "dispatch.h"

#include <atomic>
#include <cstring>

#include "export.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace forerun {
namespace {

struct Tier {
    const Kernels* table;
    bool runs_here;
};

#if defined(__x86_64__) && defined(__GNUC__)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx2_vnni() { return has_avx2() && __builtin_cpu_supports("avxvnni"); }
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
bool has_avx512_bf16() { return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }
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

constexpr int MOST_TIERS = 7;

// Every tier that was compiled, the best first.
int list_tiers(Tier* tiers) {
    int n = 0;
#ifdef FORERUN_HAS_neon
    tiers[n++] = {kernels_neon(), has_neon()};
#endif
#ifdef FORERUN_HAS_avx512_bf16
    tiers[n++] = {kernels_avx512_bf16(), has_avx512_bf16()};
#endif
#ifdef FORERUN_HAS_avx512_vnni
    tiers[n++] = {kernels_avx512_vnni(), has_avx512_vnni()};
#endif
#ifdef FORERUN_HAS_avx512
    tiers[n++] = {kernels_avx512(), has_avx512()};
#endif
#ifdef FORERUN_HAS_avx2_vnni
    tiers[n++] = {kernels_avx2_vnni(), has_avx2_vnni()};
#endif
#ifdef FORERUN_HAS_avx2
    tiers[n++] = {kernels_avx2(), has_avx2()};
#endif
    tiers[n++] = {kernels_portable(), true};
    return n;
}

const Kernels* find(const char* name) {
    Tier tiers[MOST_TIERS];
    const int n = list_tiers(tiers);
    for (int i = 0; i < n; i++)
        if (tiers[i].runs_here && (!name || !std::strcmp(name, tiers[i].table->name))) return tiers[i].table;
    return nullptr;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

bool can_stream() {
#if defined(__x86_64__) && defined(__GNUC__)
    static const bool is_amd = __builtin_cpu_is("amd");
    return is_amd;
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

// Changes with every function or struct that Python sees, so that a library from before is noticed.
FORERUN_EXPORT int forerun_version() { return 11; }

// The name of the instruction set in use.
FORERUN_EXPORT const char* forerun_tier() { return forerun::kernels().name; }

// Take another one, for tests; null takes the best. Returns 0 where this machine or this build lacks it.
FORERUN_EXPORT int forerun_select_tier(const char* name) {
    const forerun::Kernels* table = forerun::find(name);
    if (!table) return 0;
    forerun::chosen.store(table, std::memory_order_release);
    return 1;
}
