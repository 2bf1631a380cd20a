// How much scratch attend needs, whatever the instruction set.
#include "attention_scratch.h"

namespace forerun {

int64_t attend_scratch_bytes(Heads heads) {
    return attention_scratch(heads).num_bytes;
}

}  // namespace forerun
