// Chooses the best kernels that this machine can run.
#pragma once
#include "kernels.h"

namespace forerun {

const Kernels& kernels();

// Whether non-temporal prefetching of weights is as fast as the normal kind. On Intel's processors the data is evicted
// before it is used: one row of SmolLM2's head took 5.2 ms instead of 1.0 on a Sapphire Rapids.
bool can_stream();

}  // namespace forerun
