// Prints the instruction sets that this machine can run, the worst first: CMakeLists.txt runs it before it compiles them.
#include <cstdio>

#include "cpu.h"

int main() {
#define TIER(name) \
    if (forerun::has_##name()) std::printf("%s;", #name);
    FORERUN_TIERS  // TIER(...) for every tier that the compiler can make
#undef TIER
}
