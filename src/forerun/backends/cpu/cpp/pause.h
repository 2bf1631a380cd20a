// The processor's hint for a spin loop, which leaves time to the core's other hardware thread.
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
