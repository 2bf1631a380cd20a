// Size of attend's scratch memory, the same for all instruction sets.
#include "attention_scratch.h"

namespace forerun {

int64_t attend_scratch_bytes(Heads heads) {
    return attention_scratch(heads).num_bytes;
}

}  // namespace forerun
