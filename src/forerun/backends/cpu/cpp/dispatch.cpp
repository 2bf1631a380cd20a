#include "dispatch.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "cpu.h"
#include "export.h"

namespace forerun {

#define TIER(name) \
    namespace name { const Kernels* kernels(); }
FORERUN_TIERS  // CMakeLists.txt: TIER(...) for every instruction set that was compiled, the best first
#undef TIER

namespace {

struct Tier {
    const Kernels* table;
    bool runs_here;
};

const Kernels* find(const char* name) {
#define TIER(name) {name::kernels(), has_##name()},
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
FORERUN_EXPORT int forerun_version() { return 20; }

// Name of the instruction set in use.
FORERUN_EXPORT const char* forerun_tier() { return forerun::kernels().name; }

// Selects another instruction set, for tests; null selects the best. Returns 0 if this machine or build lacks it.
FORERUN_EXPORT int forerun_select_tier(const char* name) {
    const forerun::Kernels* table = forerun::find(name);
    if (!table) return 0;
    forerun::chosen.store(table, std::memory_order_release);
    return 1;
}
