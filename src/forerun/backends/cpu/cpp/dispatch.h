// Which kernels run: the best that this machine has.
#pragma once
#include "kernels.h"

namespace forerun {

const Kernels& kernels();

}  // namespace forerun
