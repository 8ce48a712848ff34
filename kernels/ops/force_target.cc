#include "kernels/ops/force_target.h"

#include <cstdint>

#include "kernels/ops/hwy_targets.h"
// After hwy_targets.h.
#include "hwy/highway.h"

namespace koine::kernels {

std::vector<std::string> RunnableTargets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

ForcedTarget::ForcedTarget(const std::string& name) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return;
  }
}

ForcedTarget::~ForcedTarget() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace koine::kernels
