// Which kernels run: the best that this machine has.
#pragma once
#include "kernels.h"

namespace forerun {

const Kernels& kernels();

// Whether weights that are fetched past the caches arrive as fast as others. On Intel's processors they are gone again
// before they are used: a row of SmolLM2's head took 5.2 ms in place of 1.0 on a Sapphire Rapids.
bool can_stream();

}  // namespace forerun
