// Sizes of the scratch memory of attend and delta_net, the same for all instruction sets.
#include "mixer_scratch.h"

namespace forerun {

int64_t attend_scratch_bytes(Heads heads) {
    return attention_scratch(heads).num_bytes;
}

int64_t mixer_scratch_bytes(const Mixer& net, int64_t reach) {
    return mixer_scratch(net, reach).num_bytes;
}

}  // namespace forerun
