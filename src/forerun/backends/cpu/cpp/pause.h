// A moment for the core's other thread, in a loop that waits.
#pragma once
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace forerun {

inline void pause() {
#ifdef __x86_64__
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace forerun
