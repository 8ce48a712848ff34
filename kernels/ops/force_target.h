// Forces the instruction set that all Highway kernels of this process use. For tests.
#ifndef KOINE_KERNELS_OPS_FORCE_TARGET_H_
#define KOINE_KERNELS_OPS_FORCE_TARGET_H_

#include <string>
#include <vector>

namespace koine::kernels {

// Names (as OpsTarget() gives them) of the instruction sets that are compiled in and that this processor runs,
// best first.
std::vector<std::string> RunnableTargets();

// While alive, kernels use the instruction set `name`, one of RunnableTargets(). Not thread-safe.
class ForcedTarget {
 public:
  explicit ForcedTarget(const std::string& name);
  ~ForcedTarget();
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

}  // namespace koine::kernels

#endif  // KOINE_KERNELS_OPS_FORCE_TARGET_H_
